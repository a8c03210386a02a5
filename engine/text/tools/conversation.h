// Conversations with tool calls as chat templates take them. A call's arguments travel as text; most
// templates want the object that it spells, some join the text as it is.
#pragma once

#include "engine/text/chat_template.h"

namespace oar::tools {

// ChatTemplate::render() of messages as OpenAI's clients send them.
Result<ChatPrompt> render_conversation(const ChatTemplate& chat_template, const json::array& messages,
                                       const json::array* tools, const ChatTemplateOptions& options);

}  // namespace oar::tools
