#include "server/api/text_tools.h"

#include <algorithm>

#include "engine/base/format.h"

namespace oar::api {
namespace {

std::string_view strip(std::string_view s) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const size_t begin = s.find_first_not_of(kSpace);
  return begin == std::string_view::npos ? std::string_view()
                                         : s.substr(begin, s.find_last_not_of(kSpace) - begin + 1);
}

// Leaves the last message open: cuts what the template put behind its text. Templates often strip the
// content, so its stripped form is what is looked for, and trailing space is kept where the template kept it.
Result<ChatPrompt> cut_after_last_message(ChatPrompt prompt, const json::array& messages) {
  const json::value* content = messages.back().as_object().if_contains("content");
  const std::string_view text =
      content && content->is_string()
          ? std::string_view(content->get_string().data(), content->get_string().size())
          : std::string_view();
  const std::string_view core = strip(text);
  const size_t at = prompt.text.rfind(core);
  if (core.empty() || at == std::string::npos) {
    return invalid_argument(
        "continue_final_message needs a last message with text that the chat template repeats",
        "continue_final_message");
  }
  const std::string_view with_tail = text.substr(static_cast<size_t>(core.data() - text.data()));
  const bool tail_kept = std::string_view(prompt.text).substr(at).starts_with(with_tail);
  prompt.text.resize(at + (tail_kept ? with_tail.size() : core.size()));
  const size_t end = prompt.text.size();
  while (!prompt.user.empty() && prompt.user.back().begin >= end) prompt.user.pop_back();
  if (!prompt.user.empty()) prompt.user.back().end = std::min(prompt.user.back().end, end);
  return prompt;
}

}  // namespace

Result<ChatPrompt> render_chat(const ModelHandle& model, const ChatRequest& request,
                               const ApiLimits& limits) {
  if (!model.chat_template) {
    return Status(StatusCode::kFailedPrecondition,
                  cat("the model ", model.name, " has no chat template; use /v1/completions"), "messages");
  }
  ChatTemplateOptions options;
  options.add_generation_prompt = request.add_generation_prompt;
  options.bos_token = model.bos_token;
  options.eos_token = model.eos_token;
  options.extra = request.template_kwargs;
  options.allow_special_in_text = model.allow_special_in_text;
  Result<ChatPrompt> rendered = model.chat_template->render(request.messages, nullptr, options);
  if (!rendered.ok()) {
    // A template that runs past its limits does so because of this conversation: the caller's 400, not a 429.
    return invalid_argument(cat("the chat template refused the messages: ", rendered.status().message()),
                            "messages");
  }
  if (rendered->text.size() > limits.max_template_bytes) {
    return invalid_argument(cat("the rendered messages are ", rendered->text.size(), " bytes long; at most ",
                                limits.max_template_bytes, " are accepted"),
                            "messages");
  }
  if (!request.continue_final_message) return rendered;
  return cut_after_last_message(std::move(*rendered), request.messages);
}

Result<std::vector<int32_t>> tokenize(const ModelHandle& model, std::string_view text,
                                      bool add_special_tokens) {
  Tokenizer::EncodeOptions options;
  options.add_special_tokens = add_special_tokens;
  return model.tokenizer->encode(text, options);
}

Result<std::vector<int32_t>> tokenize(const ModelHandle& model, const ChatPrompt& prompt,
                                      bool add_special_tokens) {
  return model.tokenizer->encode(prompt.text,
                                 {.add_special_tokens = add_special_tokens, .plain = prompt.user});
}

std::string detokenize(const ModelHandle& model, const std::vector<int32_t>& tokens,
                       bool skip_special_tokens) {
  return model.tokenizer->decode(tokens, skip_special_tokens);
}

std::string token_bytes(const ModelHandle& model, int32_t token) {
  return std::string(model.tokenizer->token_bytes(token));
}

}  // namespace oar::api
