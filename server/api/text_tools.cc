#include "server/api/text_tools.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/text/encode_watch.h"
#include "engine/text/tools/conversation.h"
#include "server/api/worker_pool.h"

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
Result<ChatPrompt> cut_after_last_message(ChatPrompt prompt, const ChatMessage& last) {
  const std::string_view text = last.content ? std::string_view(*last.content) : std::string_view();
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

// As templates see messages.
json::array to_json(const std::vector<ChatMessage>& messages) {
  json::array out;
  for (const ChatMessage& m : messages) {
    json::object one{{"role", json::string(m.role)}, {"content", nullptr}};
    if (m.content) one["content"] = json::string(*m.content);
    for (const auto& member : m.other) one[member.key()] = member.value();
    out.emplace_back(std::move(one));
  }
  return out;
}

Result<ChatPrompt> render_chat(const ModelHandle& model, const GenerationRequest& request,
                               const ApiLimits& limits) {
  const std::string field(request.prompt_field);
  if (!model.chat_template) {
    return Status(StatusCode::kFailedPrecondition,
                  cat("the model ", model.name, " has no chat template; use /v1/completions"), field);
  }
  const Conversation& c = *request.conversation;
  ChatTemplateOptions options;
  options.add_generation_prompt = c.add_generation_prompt && !c.continue_final_message;
  options.bos_token = model.bos_token;
  options.eos_token = model.eos_token;
  options.extra = c.template_kwargs;
  options.allow_special_in_text = model.allow_special_in_text;
  const json::array* tools = c.reply.tools.active() ? &c.reply.tools.definitions : nullptr;
  Result<ChatPrompt> rendered =
      tools::render_conversation(*model.chat_template, to_json(c.messages), tools, options);
  if (!rendered.ok()) {
    // A template that runs past its limits does so because of this conversation: the caller's 400, not a 429.
    return invalid_argument(cat("the chat template refused the messages: ", rendered.status().message()),
                            field);
  }
  if (rendered->text.size() > limits.max_template_bytes) {
    return invalid_argument(cat("the rendered messages are ", rendered->text.size(), " bytes long; at most ",
                                limits.max_template_bytes, " are accepted"),
                            field);
  }
  if (!c.continue_final_message) return rendered;
  return cut_after_last_message(std::move(*rendered), c.messages.back());
}

// Tokenizes the prompts of one request.
class PromptTokenizer final : public EncodeWatch {
 public:
  PromptTokenizer(const ModelHandle& model, const GenerationRequest& request, const PromptBounds& bounds)
      : tokenizer_(*model.tokenizer), bounds_(bounds), field_(request.prompt_field) {
    options_.add_special_tokens = request.add_special_tokens;
    options_.watch = this;
  }

  Result<std::vector<int32_t>> tokens(std::string_view text, std::span<const TextSpan> plain = {}) {
    const size_t most = tokenizer_.max_token_bytes();
    if (most > 0 && static_cast<int64_t>(text.size() / most) > bounds_.max_tokens)
      return too_long(cat("is ", text.size(), " bytes long, which are at least ", text.size() / most));
    options_.plain = plain;
    return tokenizer_.encode(text, options_);
  }

 private:
  Status look(size_t ids) override {
    WorkerPool::give_way();
    if (static_cast<int64_t>(ids) > bounds_.max_tokens) return too_long(cat("has more than ", ids));
    if (bounds_.gone && *bounds_.gone) return {StatusCode::kCancelled, "the caller has left"};
    if (bounds_.deadline && Clock::now() > *bounds_.deadline)
      return {StatusCode::kDeadlineExceeded,
              "the deadline passed while the prompt was tokenized; send less text or allow more time"};
    return ok_status();
  }
  Status too_long(const std::string& what) const {
    return {StatusCode::kOutOfRange,
            cat("the prompt ", what, " tokens, but the model's context holds ", bounds_.max_tokens,
                ", answer included; shorten the prompt"),
            field_};
  }

  const Tokenizer& tokenizer_;
  const PromptBounds& bounds_;
  const std::string field_;
  Tokenizer::EncodeOptions options_;
};

}  // namespace

Result<std::vector<std::vector<int32_t>>> prompt_tokens(const ModelHandle& model,
                                                        const GenerationRequest& request,
                                                        const ApiLimits& limits, const PromptBounds& bounds) {
  PromptTokenizer tokenizer(model, request, bounds);
  std::vector<std::vector<int32_t>> out;
  if (request.conversation) {
    OAR_ASSIGN(const ChatPrompt prompt, render_chat(model, request, limits));
    OAR_ASSIGN(std::vector<int32_t> tokens, tokenizer.tokens(prompt.text, prompt.user));
    out.push_back(std::move(tokens));
    return out;
  }
  for (const Prompt& prompt : request.prompts) {
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) {
      out.push_back(*ids);
      continue;
    }
    OAR_ASSIGN(std::vector<int32_t> tokens, tokenizer.tokens(std::get<std::string>(prompt)));
    out.push_back(std::move(tokens));
  }
  return out;
}

std::string detokenize(const ModelHandle& model, const std::vector<int32_t>& tokens,
                       bool skip_special_tokens) {
  return model.tokenizer->decode(tokens, skip_special_tokens);
}

std::string token_bytes(const ModelHandle& model, int32_t token) {
  return std::string(model.tokenizer->token_bytes(token));
}

}  // namespace oar::api
