#include "server/api/text_tools.h"

#include <algorithm>
#include <ctime>

#include "engine/base/format.h"
#include "engine/base/strip.h"
#include "engine/text/encode_watch.h"
#include "engine/text/tools/conversation.h"
#include "server/api/worker_pool.h"

namespace oar::api {
namespace {

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

// Firefunction's template, which says itself how the model writes calls, wants its tools as text and the
// time.
void add_firefunction_variables(const ChatTemplate& chat, const json::array* tools, json::object& variables) {
  const std::string& source = chat.source();
  for (const char* word : {"functools[", "functions", "datetime"})
    if (source.find(word) == std::string::npos) return;
  json::array functions;
  if (tools)
    for (const json::value& tool : *tools) {
      const json::value* function = tool.is_object() ? tool.get_object().if_contains("function") : nullptr;
      functions.push_back(function ? *function : tool);
    }
  if (!variables.contains("functions"))
    variables["functions"] = json::string(functions.empty() ? "" : json::serialize(functions));
  if (variables.contains("datetime")) return;
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[64];
  text[std::strftime(text, sizeof text, "%b %d %Y %H:%M:%S GMT", &utc)] = '\0';
  variables["datetime"] = text;
}

// A role of the caller's own is for templates that take any: one that leaves the message out, or reads it as
// somebody else's, is found out by a message of that role alone.
Status check_role(const ChatTemplate& chat, const std::string& role, const ChatTemplateOptions& options,
                  const std::string& path) {
  const std::string word = "oar-probe";
  const auto render = [&](std::string_view as) {
    return chat.render({json::object{{"role", json::string(as)}, {"content", json::string(word)}}}, nullptr,
                       options);
  };
  const Result<ChatPrompt> own = render(role);
  bool takes = own.ok() && own->text.find(word) != std::string::npos;
  for (const char* other : {"system", "user", "assistant"}) {
    if (!takes) break;
    const Result<ChatPrompt> its = render(other);
    takes = !its.ok() || its->text != own->text;
  }
  if (takes) return ok_status();
  return invalid_argument(cat(path, " is ", describe(json::value(role)),
                              ", for which the model's chat template has no place; use ", known_roles()),
                          path);
}

Status check_roles(const ChatTemplate& chat, const GenerationRequest& request,
                   const ChatTemplateOptions& options) {
  const std::vector<ChatMessage>& messages = request.conversation->messages;
  for (size_t k = 0; k < messages.size(); ++k) {
    const std::string& role = messages[k].role;
    const auto same = [&](const ChatMessage& m) { return m.role == role; };
    const auto before = messages.begin() + static_cast<std::ptrdiff_t>(k);
    if (is_known_role(role) || std::any_of(messages.begin(), before, same)) continue;
    OAR_RETURN_IF_ERROR(check_role(chat, role, options, cat(request.prompt_field, "[", k, "].role")));
  }
  return ok_status();
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
  if (const json::value* given = model.request_defaults.if_contains("chat_template_kwargs"))
    for (const auto& variable : given->as_object())
      if (!options.extra.contains(variable.key())) options.extra[variable.key()] = variable.value();
  options.allow_special_in_text = model.allow_special_in_text;
  const json::array* tools = c.reply.tools.active() ? &c.reply.tools.definitions : nullptr;
  add_firefunction_variables(*model.chat_template, tools, options.extra);
  OAR_RETURN_IF_ERROR(check_roles(*model.chat_template, request, options));
  Result<ChatPrompt> rendered =
      tools::render_conversation(*model.chat_template, to_json(c.messages), tools, options);
  // Some templates, Qwen3's among them, look for marks in every content, and fail where calls alone leave it
  // null.
  const auto has_no_text = [](const ChatMessage& m) { return !m.content && !m.other.contains("content"); };
  if (!rendered.ok() && std::any_of(c.messages.begin(), c.messages.end(), has_no_text)) {
    std::vector<ChatMessage> messages = c.messages;
    for (ChatMessage& m : messages)
      if (has_no_text(m)) m.content = "";
    Result<ChatPrompt> again =
        tools::render_conversation(*model.chat_template, to_json(messages), tools, options);
    if (again.ok()) rendered = std::move(again);
  }
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

// How a model was taught to fill a gap: the text around it between tokens of its own, by what the models'
// own pages and tokenizers say.
struct FillStyle {
  std::string_view prefix, suffix, middle;
  bool suffix_first = false;
  std::string_view file = {};  // before another file's name and text; empty: there is no token for it
};
constexpr FillStyle kFillStyles[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", false, "<|file_sep|>"},  // Qwen coder, CodeGemma
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", false, "<file_sep>"},          // StarCoder 2, Granite
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},                               // SantaCoder
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},                      // GLM
    {"<\uFF5Cfim\u2581begin\uFF5C>", "<\uFF5Cfim\u2581hole\uFF5C>",
     "<\uFF5Cfim\u2581end\uFF5C>"},                 // DeepSeek
    {"\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"},  // Code Llama
    {"[PREFIX]", "[SUFFIX]", "", true},             // Codestral
};

// Between files of models that have no token for it.
constexpr std::string_view kSnippet = "\n\n--- snippet ---\n\n";

struct FillMarks {
  bool suffix_first = false;
  std::vector<int32_t> ids;  // of prefix, suffix and, where there is one, middle
  std::optional<int32_t> file;
};

std::optional<FillMarks> fill_marks(const Tokenizer& tokenizer) {
  for (const FillStyle& style : kFillStyles) {
    FillMarks marks{style.suffix_first, {}, {}};
    if (!style.file.empty()) marks.file = tokenizer.token_to_id(style.file);
    for (const std::string_view text : {style.prefix, style.suffix, style.middle}) {
      const auto id = text.empty() ? std::nullopt : tokenizer.token_to_id(text);
      if (id) marks.ids.push_back(*id);
      else if (!text.empty()) break;
    }
    if (marks.ids.size() == (style.middle.empty() ? 2 : 3)) return marks;
  }
  return std::nullopt;
}

// Tokenizes the prompts of one request.
class PromptTokenizer final : public EncodeWatch {
 public:
  PromptTokenizer(const ModelHandle& model, const GenerationRequest& request, const PromptBounds& bounds)
      : tokenizer_(*model.tokenizer), bounds_(bounds), field_(request.prompt_field) {
    options_.add_special_tokens = request.add_special_tokens;
    options_.watch = this;
  }

  // The gap between two texts.
  Result<std::vector<int32_t>> fill(std::string_view prefix, const GenerationRequest& request) {
    const std::optional<FillMarks> marks = fill_marks(tokenizer_);
    if (!marks)
      return invalid_argument(
          cat(request.fills ? "input_suffix" : "suffix",
              ": the model has no tokens for the text around a gap (fill in the middle); leave it out"),
          request.fills ? "input_suffix" : "suffix");
    options_.add_special_tokens = false;
    OAR_ASSIGN(const std::vector<int32_t> before, tokens(prefix));
    OAR_ASSIGN(const std::vector<int32_t> behind, tokens(request.suffix));
    OAR_ASSIGN(const std::vector<int32_t> begun, tokens(request.beginning));
    std::vector<int32_t> out;
    if (request.add_special_tokens && tokenizer_.adds_bos() && tokenizer_.bos_id())
      out.push_back(*tokenizer_.bos_id());
    const auto put = [&](int32_t mark, const std::vector<int32_t>& text) {
      out.push_back(mark);
      out.insert(out.end(), text.begin(), text.end());
    };
    for (const OtherFile& file : request.other_files) {
      OAR_ASSIGN(const std::vector<int32_t> text,
                 tokens(marks->file ? cat(file.name, "\n", file.text) : cat(kSnippet, file.text)));
      if (marks->file) out.push_back(*marks->file);
      out.insert(out.end(), text.begin(), text.end());
    }
    if (marks->suffix_first) put(marks->ids[1], behind);
    put(marks->ids[0], before);
    if (!marks->suffix_first) put(marks->ids[1], behind);
    if (marks->ids.size() == 3) out.push_back(marks->ids[2]);
    out.insert(out.end(), begun.begin(), begun.end());
    return out;
  }

  Result<std::vector<int32_t>> tokens(std::string_view text, std::span<const TextSpan> plain = {}) {
    const size_t most = tokenizer_.max_token_bytes();
    if (most > 0 && static_cast<int64_t>(text.size() / most) > bounds_.max_tokens)
      return too_long(cat("is ", text.size(), " bytes long, which are at least "), text.size() / most);
    options_.plain = plain;
    return tokenizer_.encode(text, options_);
  }

 private:
  Status look(size_t ids) override {
    WorkerPool::give_way();
    if (static_cast<int64_t>(ids) > bounds_.max_tokens) return too_long("has more than ", ids);
    if (bounds_.gone && *bounds_.gone) return {StatusCode::kCancelled, "the caller has left"};
    if (bounds_.deadline && Clock::now() > *bounds_.deadline)
      return {StatusCode::kDeadlineExceeded,
              "the deadline passed while the prompt was tokenized; send less text or allow more time"};
    return ok_status();
  }
  Status too_long(const std::string& what, size_t tokens) const {
    if (bounds_.excess) *bounds_.excess = {static_cast<int64_t>(tokens), bounds_.max_tokens};
    return {StatusCode::kOutOfRange,
            cat("the prompt ", what, tokens, " tokens, but the model's context holds ", bounds_.max_tokens,
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
  if (request.conversation && request.prompts.empty()) {
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
    const auto& text = std::get<std::string>(prompt);
    OAR_ASSIGN(std::vector<int32_t> tokens, request.suffix.empty() && !request.fills
                                                ? tokenizer.tokens(text)
                                                : tokenizer.fill(text, request));
    out.push_back(std::move(tokens));
  }
  return out;
}

Result<std::string> conversation_text(const ModelHandle& model, const GenerationRequest& request,
                                      const ApiLimits& limits) {
  OAR_ASSIGN(ChatPrompt prompt, render_chat(model, request, limits));
  return std::move(prompt.text);
}

Result<std::vector<std::vector<int32_t>>> banned_sequences(const ModelHandle& model,
                                                           const std::vector<std::string>& words) {
  std::vector<std::vector<int32_t>> out;
  Tokenizer::EncodeOptions options;
  options.add_special_tokens = false;
  for (const std::string& word : words) {
    const std::string core(word.substr(std::min(word.find_first_not_of(' '), word.size())));
    for (const std::string& text : {core, " " + core}) {
      OAR_ASSIGN(std::vector<int32_t> tokens, model.tokenizer->encode(text, options));
      if (!tokens.empty() && std::find(out.begin(), out.end(), tokens) == out.end())
        out.push_back(std::move(tokens));
    }
  }
  return out;
}

bool fills_gaps(const ModelHandle& model) { return fill_marks(*model.tokenizer).has_value(); }

std::string detokenize(const ModelHandle& model, const std::vector<int32_t>& tokens,
                       bool skip_special_tokens) {
  return model.tokenizer->decode(tokens, skip_special_tokens);
}

std::string token_bytes(const ModelHandle& model, int32_t token) {
  return std::string(model.tokenizer->token_bytes(token));
}

}  // namespace oar::api
