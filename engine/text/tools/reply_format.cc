#include "engine/text/tools/reply_format.h"

#include <algorithm>
#include <random>

#include "engine/text/tools/markers.h"

namespace oar {

using namespace tools;  // NOLINT: this is their room

std::vector<std::string_view> ReplyFormat::markers() const {
  std::vector<std::string_view> all;
  if (calls) {
    for (const std::string_view m :
         {calls->section_begin, calls->section_end, calls->call_begin, calls->call_end, calls->name_begin,
          calls->name_end, calls->id_begin, calls->quote})
      all.push_back(m);
    for (const std::string_view m : {calls->key_begin, calls->key_end, calls->value_begin, calls->value_end})
      all.push_back(m);
  }
  if (reasoning) {
    for (const std::string_view m :
         {reasoning->begin, reasoning->end, reasoning->answer_begin, reasoning->answer_end})
      all.push_back(m);
    // Gemma's opening marker is a token and a word.
    if (const size_t end = reasoning->begin.find('>'); end != std::string_view::npos)
      all.push_back(reasoning->begin.substr(0, end + 1));
  }
  if ((calls && calls->syntax == CallSyntax::kHarmony) || (reasoning && reasoning->harmony)) {
    for (const std::string_view m : {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"})
      all.push_back(m);
    for (const std::string_view m : {"<|call|>", "<|return|>"}) all.push_back(m);
  }
  std::erase(all, std::string_view());
  return all;
}

std::vector<int32_t> ReplyFormat::marker_tokens(const Tokenizer& tokenizer) const {
  std::vector<int32_t> ids;
  for (const std::string_view marker : markers()) {
    const std::optional<int32_t> id = tokenizer.token_to_id(marker);
    if (id && tokenizer.is_special(*id)) ids.push_back(*id);
  }
  return ids;
}

std::vector<int32_t> ReplyFormat::end_tokens(const Tokenizer& tokenizer) const {
  std::vector<int32_t> ids;
  if (!calls) return ids;
  for (const std::string_view token : calls->end_tokens) {
    const std::optional<int32_t> id = token.empty() ? std::nullopt : tokenizer.token_to_id(token);
    if (id && tokenizer.is_special(*id)) ids.push_back(*id);
  }
  return ids;
}

bool ends_in_reasoning(const ReasoningStyle* style, const Tokenizer& tokenizer,
                       std::span<const int32_t> prompt) {
  if (!style || style->harmony) return false;
  constexpr size_t kTail = 64;  // tokens: more than any marker and the space behind it take
  const std::string tail = tokenizer.decode(prompt.last(std::min(prompt.size(), kTail)), false);
  return strip_space(tail).ends_with(style->begin);
}

std::string make_call_id(CallIds form) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  thread_local std::mt19937_64 random{std::random_device{}() ^ (uint64_t{std::random_device{}()} << 32)};
  std::string id = form == CallIds::kNine ? "" : "call_";
  for (int left = form == CallIds::kNine ? 9 : 24; left > 0; --left)
    id += kLetters[random() % kLetters.size()];
  return id;
}

Result<std::shared_ptr<const ReplyFormat>> make_reply_format(
    const ToolStyle* calls, const ReasoningStyle* reasoning, const ToolRequest& tools,
    const ReasoningOptions& options, const Tokenizer& tokenizer, std::span<const int32_t> prompt) {
  auto format = std::make_shared<ReplyFormat>();
  if (tools.active()) {
    if (!calls)
      return invalid_argument(
          "tools: it is not known how this model writes tool calls; leave tools out, or say it with "
          "tool-parser",
          "tools");
    format->calls = calls;
    format->parallel_calls = tools.parallel;
    format->only_calls = tools.mode == ToolRequest::Mode::kRequired;
    format->tools = tools.tools;
  }
  if (options.separate || !options.include) format->reasoning = reasoning;
  format->show_reasoning = options.include;
  if (format->empty()) return std::shared_ptr<const ReplyFormat>();
  format->in_reasoning = ends_in_reasoning(format->reasoning, tokenizer, prompt);
  return std::shared_ptr<const ReplyFormat>(std::move(format));
}

}  // namespace oar
