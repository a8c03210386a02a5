// Conversations with tool calls as chat templates take them. A call's arguments travel as text; most
// templates want the object that it spells, some join the text as it is.
#pragma once

#include "engine/text/chat_template.h"

namespace oar::tools {

// ChatTemplate::render() of messages as OpenAI's clients send them.
Result<ChatPrompt> render_conversation(const ChatTemplate& chat_template, const json::array& messages,
                                       const json::array* tools, const ChatTemplateOptions& options);

// What of a conversation says something and would not come into its text, as far as the template's source
// tells: "messages[1] has the key 'x'", or "the conversation has 'tools'"; empty: nothing. Names and ids of
// calls may be left out.
std::string left_out(const ChatTemplate& chat_template, const json::array& messages,
                     const json::array* tools);

}  // namespace oar::tools
