#include "train/data.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/base/strip.h"
#include "engine/tensor/mapped_file.h"
#include "engine/text/line_reader.h"
#include "engine/text/tools/conversation.h"
#include "engine/text/utf8.h"

namespace oar::train {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{4} << 30;
constexpr double kMostWeight = 1000;

// Reads one file's samples.
class Reader : LineReader {
 public:
  Reader(const DataFile& file, const DataModel& model, const DataOptions& options)
      : LineReader(file.path), model_(model), options_(options) {
    out_.file = file;
  }

  Status text(std::string_view contents) {
    OAR_RETURN_IF_ERROR(each_line(contents, [](std::string_view, int64_t) { return ok_status(); }));
    for (size_t begin = 0; begin <= contents.size();) {
      const size_t end = std::min(contents.find(kSeparator, begin), contents.size());
      const std::string_view document = strip(contents.substr(begin, end - begin));
      if (!document.empty()) OAR_RETURN_IF_ERROR(add_document(document, line_of(contents, begin)));
      begin = end + kSeparator.size();
    }
    return ok_status();
  }

  Status lines(std::string_view contents) {
    return each_line(contents, [&](std::string_view text, int64_t line) {
      return is_blank(text) ? ok_status() : add_line(text, line);
    });
  }

  Result<FileSamples> finish() {
    if (out_.samples.empty())
      return invalid_argument(
          cat(out_.file.path, " holds no sample; a line or document that is not empty is expected"));
    return std::move(out_);
  }

 private:
  static int64_t line_of(std::string_view text, size_t at) {
    return 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n');
  }
  // Ids of a text that stands alone or goes on.
  Status encode(std::string_view text, std::span<const TextSpan> plain, int64_t line,
                std::vector<int32_t>& to) {
    auto ids = model_.tokenizer.encode(text, {.add_special_tokens = false, .plain = plain});
    if (!ids.ok()) return wrong(line, ids.status().message());
    to.insert(to.end(), ids->begin(), ids->end());
    return ok_status();
  }

  Status add_document(std::string_view text, int64_t line) {
    // A document is data: what looks like a control token in it is text.
    const TextSpan whole[] = {{0, text.size()}};
    std::vector<int32_t> ids;
    OAR_RETURN_IF_ERROR(encode(text, whole, line, ids));
    if (ids.empty()) return wrong(line, "the text has no tokens");
    if (const auto eos = model_.tokenizer.eos_id()) ids.push_back(*eos);
    const int32_t bos = model_.tokenizer.adds_bos() ? model_.tokenizer.bos_id().value_or(-1) : -1;
    if (ids.size() + (bos >= 0 ? 1 : 0) < 2)
      return wrong(line, "the text is one token, which nothing comes before; remove it");
    if (options_.draw_cuts) {
      Sample& s = out_.samples.emplace_back(piece_of(ids, -1));
      s.document = true, s.bos = bos;
      return ok_status();
    }
    const auto room = static_cast<size_t>(options_.length) - (bos >= 0 ? 1 : 0);
    for (size_t begin = 0; begin < ids.size(); begin += room) {
      const size_t count = std::min(ids.size() - begin, room);
      Sample s = piece_of(std::span(ids).subspan(begin, count), bos);
      if (s.count() > 0) out_.samples.push_back(std::move(s));  // not a last piece of one token
    }
    return ok_status();
  }

  Status add_line(std::string_view text, int64_t line) {
    OAR_ASSIGN(const json::object o, object(text, line, "messages, prompt and completion, or text"));
    if (o.contains("chosen") || o.contains("rejected"))
      return wrong(line,
                   "is a preference pair; learning from those (DPO) comes later; give 'completion' alone");
    if (o.contains("messages")) return add_conversation(o, line);
    if (o.contains("prompt") || o.contains("completion")) return add_completion(o, line);
    if (o.contains("text")) {
      OAR_RETURN_IF_ERROR(only(o, {"text"}, line));
      OAR_ASSIGN(const std::string_view document, string(o, "text", line));
      if (is_blank(document)) return wrong(line, "'text' is empty; remove the line");
      return add_document(document, line);
    }
    return wrong(line, "has none of the keys messages, prompt with completion, text");
  }

  Status add_completion(const json::object& o, int64_t line) {
    OAR_RETURN_IF_ERROR(only(o, {"prompt", "completion"}, line));
    for (const char* key : {"prompt", "completion"}) {
      if (const json::value* v = o.if_contains(key); v != nullptr && v->is_array())
        return wrong(line, cat("'", key, "' is a list; write conversations as {\"messages\": [...]}"));
    }
    OAR_ASSIGN(const std::string_view prompt, string(o, "prompt", line));
    OAR_ASSIGN(const std::string_view completion, string(o, "completion", line));
    if (completion.empty()) return wrong(line, "'completion' is empty: there is nothing to learn");
    Sample s;
    if (model_.tokenizer.adds_bos() && model_.tokenizer.bos_id())
      s.tokens.push_back(*model_.tokenizer.bos_id());
    const TextSpan all_prompt[] = {{0, prompt.size()}}, all_completion[] = {{0, completion.size()}};
    OAR_RETURN_IF_ERROR(encode(prompt, all_prompt, line, s.tokens));
    s.learned.assign(s.tokens.size(), 0);
    OAR_RETURN_IF_ERROR(encode(completion, all_completion, line, s.tokens));
    if (const auto eos = model_.tokenizer.eos_id()) s.tokens.push_back(*eos);
    s.learned.resize(s.tokens.size(), 1);
    return add(std::move(s), line);
  }

  Status check_messages(const json::array& messages, int64_t line, size_t& answers) const {
    static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
    for (size_t k = 0; k < messages.size(); ++k) {
      const json::object* const m = messages[k].if_object();
      const auto at = [&](std::string_view what) { return wrong(line, cat("messages[", k, "] ", what)); };
      if (m == nullptr) return at("is no object");
      const json::value* const role = m->if_contains("role");
      if (role == nullptr || !role->is_string() ||
          std::find(std::begin(kRoles), std::end(kRoles), std::string_view(role->get_string())) ==
              std::end(kRoles))
        return at("has no role of system, developer, user, assistant, tool");
      const bool answer = role->get_string() == "assistant";
      const json::value* const content = m->if_contains("content");
      const bool text = content != nullptr && content->is_string();
      if (content != nullptr && content->is_array()) return at("has parts as content; only text is read");
      const bool calls = answer && m->contains("tool_calls");
      if (!text && !(calls && (content == nullptr || content->is_null())))
        return at("has no 'content' that is text");
      if (const json::value* w = m->if_contains("weight")) {
        if (!answer || !w->is_int64() || (w->get_int64() != 0 && w->get_int64() != 1))
          return at("has a 'weight' other than 0 or 1 on an assistant's message");
        if (w->get_int64() == 0) continue;
      }
      if (answer && text && !calls && is_blank(content->get_string()))
        return at("is an empty answer; remove it, or give it \"weight\": 0");
      answers += answer;
    }
    return ok_status();
  }

  // A rendered conversation of the first `count` messages.
  Result<ChatPrompt> render(const json::array& messages, size_t count, const json::array* tools, bool prompt,
                            int64_t line) const {
    ChatTemplateOptions o;
    o.add_generation_prompt = prompt;
    o.bos_token = model_.bos_token;
    o.eos_token = model_.eos_token;
    json::array part(messages.begin(), messages.begin() + static_cast<ptrdiff_t>(count));
    auto rendered = tools::render_conversation(model_.chat_template, part, tools, o);
    if (!rendered.ok()) return wrong(line, cat("the model's chat template: ", rendered.status().message()));
    return rendered;
  }

  Status add_conversation(const json::object& o, int64_t line) {
    OAR_RETURN_IF_ERROR(only(o, {"messages", "tools"}, line));
    const json::value& list = o.at("messages");
    if (!list.is_array() || list.get_array().empty())
      return wrong(line, "'messages' must be a list of messages");
    const json::value* const tools = o.if_contains("tools");
    if (tools != nullptr && !tools->is_null() && !tools->is_array())
      return wrong(line, "'tools' must be a list");
    const json::array* const tool_list = tools != nullptr ? tools->if_array() : nullptr;
    json::array messages = list.get_array();
    size_t answers = 0;
    OAR_RETURN_IF_ERROR(check_messages(messages, line, answers));
    if (answers == 0)
      return wrong(line, "the conversation has no answer to learn; it needs a message of the assistant");
    std::vector<bool> wanted(messages.size());
    for (size_t k = 0; k < messages.size(); ++k) {
      json::object& m = messages[k].get_object();
      const json::value* const w = m.if_contains("weight");
      wanted[k] = m.at("role") == "assistant" && (w == nullptr || w->get_int64() == 1);
      m.erase("weight");
    }
    if (const std::string lost = tools::left_out(model_.chat_template, messages, tool_list); !lost.empty())
      return wrong(line, cat(lost, ", which the model's chat template does not read; remove it"));
    OAR_ASSIGN(const ChatPrompt whole, render(messages, messages.size(), tool_list, false, line));
    // An answer is what the whole has between the prompt for it and its end.
    std::vector<TextSpan> spans;
    for (size_t k = 0; k < messages.size(); ++k) {
      if (!wanted[k]) continue;
      auto before = render(messages, k, tool_list, true, line);
      // Some templates refuse a beginning, say one that ends with the system's message.
      if (!before.ok() && k + 1 < messages.size()) {
        ++out_.unlearned;
        continue;
      }
      if (!before.ok()) return before.status();
      ChatPrompt behind;
      if (k + 1 < messages.size()) { OAR_ASSIGN(behind, render(messages, k + 1, tool_list, false, line)); }
      const std::string& end = k + 1 < messages.size() ? behind.text : whole.text;
      if (!whole.text.starts_with(before->text) || !whole.text.starts_with(end) ||
          end.size() <= before->text.size()) {
        if (k + 1 == messages.size())
          return wrong(line,
                       "the model's chat template shows the last answer otherwise than its prompt begins it; "
                       "it cannot be told which tokens are the answer");
        ++out_.unlearned;
        continue;
      }
      spans.push_back({before->text.size(), end.size()});
    }
    if (spans.empty()) return wrong(line, "the model's chat template leaves no answer that can be learned");
    ++out_.conversations;
    return add_spans(whole, spans, line);
  }

  // Answers are tokenized as generation makes them: apart from the prompt before them.
  Status add_spans(const ChatPrompt& whole, const std::vector<TextSpan>& spans, int64_t line) {
    Sample s;
    const auto piece = [&](size_t begin, size_t end, bool learned) -> Status {
      if (begin == end) return ok_status();
      std::vector<TextSpan> plain;
      for (const TextSpan& u : whole.user) {
        const size_t from = std::max(u.begin, begin), to = std::min(u.end, end);
        if (from < to) plain.push_back({from - begin, to - begin});
      }
      OAR_RETURN_IF_ERROR(
          encode(std::string_view(whole.text).substr(begin, end - begin), plain, line, s.tokens));
      size_t last = s.tokens.size();
      if (learned) {  // up to the control token that ends it: white space behind is the template's
        size_t k = s.tokens.size();
        while (k > s.learned.size() && !model_.tokenizer.is_special(s.tokens[k - 1])) --k;
        if (k > s.learned.size() && is_blank(model_.tokenizer.decode(std::span(s.tokens).subspan(k))))
          last = k;
      }
      s.learned.resize(last, learned);
      s.learned.resize(s.tokens.size(), 0);
      return ok_status();
    };
    size_t at = 0;
    for (const TextSpan& span : spans) {
      OAR_RETURN_IF_ERROR(piece(at, span.begin, false));
      OAR_RETURN_IF_ERROR(piece(span.begin, span.end, true));
      at = span.end;
    }
    OAR_RETURN_IF_ERROR(piece(at, whole.text.size(), false));
    return add(std::move(s), line);
  }

  Status add(Sample s, int64_t line) {
    const auto most = static_cast<size_t>(options_.length);
    if (!s.learned.empty()) s.learned[0] = 0;
    if (s.tokens.size() > most) {
      if (options_.too_long == TooLong::kRefuse)
        return wrong(line, cat("the sample has ", s.tokens.size(), " tokens, above --length ", most,
                               "; raise it, shorten the sample or choose --too-long cut"));
      s.tokens.resize(most);
      s.learned.resize(most);
      ++out_.cut;
    }
    if (s.count() == 0)
      return wrong(line, cat("nothing is learned within the first ", most,
                             " tokens; raise --length or remove the line"));
    out_.samples.push_back(std::move(s));
    return ok_status();
  }

  const DataModel& model_;
  const DataOptions& options_;
  FileSamples out_;
};

}  // namespace

Sample piece_of(std::span<const int32_t> tokens, int32_t bos) {
  Sample s;
  if (bos >= 0) s.tokens.push_back(bos);
  s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
  s.learned.assign(s.tokens.size(), 1);
  s.learned[0] = 0;
  return s;
}

Result<DataFile> parse_data_file(std::string_view argument) {
  DataFile out{std::string(argument)};
  const size_t colon = argument.rfind(':');
  if (colon == std::string_view::npos || colon + 1 == argument.size()) return out;
  const std::string_view number = argument.substr(colon + 1);
  double weight = 0;
  const auto r = std::from_chars(number.data(), number.data() + number.size(), weight);
  if (r.ec != std::errc() || r.ptr != number.data() + number.size()) return out;
  if (!(weight > 0 && weight <= kMostWeight))
    return invalid_argument(cat("'", argument, "': a weight is above 0 and at most ", kMostWeight));
  out.path = std::string(argument.substr(0, colon));
  out.weight = weight;
  return out;
}

Result<std::string> read_data_file(const DataFile& file, std::string_view label) {
  if (!is_regular_file(file.path)) return not_found(cat(label, ": ", file.path, " is no file"));
  OAR_ASSIGN(std::string contents, read_small_file(file.path, kMaxFileBytes));
  contents.erase(0, contents.size() - without_mark(contents).size());
  return contents;
}

Result<FileSamples> read_samples(const DataFile& file, std::string_view contents, const DataModel& model,
                                 const DataOptions& options) {
  Reader reader(file, model, options);
  const std::string kind = std::filesystem::path(file.path).extension().string();
  if (kind == ".jsonl") {
    OAR_RETURN_IF_ERROR(reader.lines(contents));
  } else if (kind == ".txt" || kind == ".md") {
    OAR_RETURN_IF_ERROR(reader.text(contents));
  } else if (kind == ".tsv") {
    return unimplemented(
        cat(file.path, ": files of labels (.tsv) are for encoders that classify; this is a language model"));
  } else {
    return invalid_argument(cat(file.path, ": the name ends in '", kind, "'; expected .txt, .md or .jsonl"));
  }
  return reader.finish();
}

Result<std::vector<FileSamples>> load_samples(const std::vector<std::string>& arguments,
                                              std::string_view label, const DataModel& model,
                                              const DataOptions& options) {
  std::vector<FileSamples> out;
  for (const std::string& argument : arguments) {
    OAR_ASSIGN(const DataFile file, parse_data_file(argument));
    OAR_ASSIGN(const std::string contents, read_data_file(file, label));
    OAR_ASSIGN(FileSamples samples, read_samples(file, contents, model, options));
    out.push_back(std::move(samples));
  }
  return out;
}

}  // namespace oar::train
