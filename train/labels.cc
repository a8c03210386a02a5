#include "train/labels.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/base/strip.h"
#include "engine/text/line_reader.h"
#include "train/learner.h"

namespace oar::train {
namespace {

constexpr int64_t kNoLabel = -100;  // as transformers and PyTorch's losses have it

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t n = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), n);
  if (text.empty() || r.ec != std::errc() || r.ptr != text.data() + text.size()) return std::nullopt;
  return n;
}

std::vector<std::string_view> columns_of(std::string_view line) {
  std::vector<std::string_view> out;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find('\t', begin), line.size());
    out.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

class LabelReader : LineReader {
 public:
  explicit LabelReader(const DataFile& file) : LineReader(file.path) { out_.file = file; }

  Status tsv(std::string_view contents) {
    LabelledText open;  // of tokens, that the next empty line ends
    OAR_RETURN_IF_ERROR(each_line(contents, [&](std::string_view text, int64_t line) -> Status {
      if (names_.empty()) return is_blank(text) ? ok_status() : read_names(text, line);
      if (is_blank(text)) return add(std::exchange(open, {}));
      const auto cells = columns_of(text);
      if (cells.size() != names_.size())
        return wrong(line, cat("has ", cells.size(), " columns, the first line names ", names_.size()));
      LabelledText one;
      one.line = line;
      for (size_t k = 0; k < cells.size(); ++k) {
        if (is_blank(cells[k])) return wrong(line, cat("the column '", names_[k], "' is empty"));
        if (names_[k] == "label") one.labels.emplace_back(cells[k]);
        else if (names_[k] == "token") one.tokens.emplace_back(cells[k]);
        else if (names_[k] == "text_pair") one.pair = cells[k];
        else one.text = cells[k];
      }
      if (one.tokens.empty()) return add(std::move(one));
      if (open.tokens.empty()) open.line = line, open.token_a_line = true;
      open.tokens.push_back(std::move(one.tokens[0]));
      open.labels.push_back(std::move(one.labels[0]));
      return ok_status();
    }));
    return add(std::move(open));
  }

  Status lines(std::string_view contents) {
    return each_line(contents, [&](std::string_view text, int64_t line) {
      return is_blank(text) ? ok_status() : add_line(text, line);
    });
  }

  Result<LabelledFile> finish() {
    if (out_.texts.empty())
      return invalid_argument(cat(path(), " holds no text with a label; at least one is expected"));
    return std::move(out_);
  }

 private:
  Status read_names(std::string_view text, int64_t line) {
    for (const std::string_view cell : columns_of(text)) {
      std::string name(cell);
      if (name == "sentence" || name == "sentence1") name = "text";
      if (name == "sentence2") name = "text_pair";
      names_.push_back(std::move(name));
    }
    std::vector<std::string> sorted = names_;
    std::sort(sorted.begin(), sorted.end());
    using Names = std::vector<std::string>;
    if (sorted == Names{"label", "text"} || sorted == Names{"label", "text", "text_pair"} ||
        sorted == Names{"label", "token"})
      return ok_status();
    return wrong(line,
                 "must name the columns: text and label; text, text_pair and label; or token and label, "
                 "apart by tabs. Remove other columns");
  }

  Result<std::optional<std::string>> label(const json::value& v, int64_t line) const {
    if (v.is_string() && !v.get_string().empty()) return std::optional(std::string(v.get_string()));
    if (v.is_int64()) return std::optional(cat(v.get_int64()));
    return wrong(line, "a label must be a text or a whole number");
  }

  Status add_line(std::string_view text, int64_t line) {
    OAR_ASSIGN(const json::object o,
               object(text, line, "text and label, text, text_pair and label, or tokens and labels"));
    LabelledText one;
    one.line = line;
    if (o.contains("tokens") || o.contains("labels")) {
      OAR_RETURN_IF_ERROR(only(o, {"tokens", "labels"}, line));
      const json::value *const tokens = o.if_contains("tokens"), *const labels = o.if_contains("labels");
      if (tokens == nullptr || labels == nullptr || !tokens->is_array() || !labels->is_array() ||
          tokens->get_array().empty() || tokens->get_array().size() != labels->get_array().size())
        return wrong(line, "'tokens' and 'labels' must be lists of one length, not empty");
      for (const json::value& t : tokens->get_array()) {
        if (!t.is_string() || is_blank(t.get_string())) return wrong(line, "a token must be a text");
        one.tokens.emplace_back(t.get_string());
      }
      for (const json::value& l : labels->get_array()) {
        one.labels.emplace_back();
        if (!l.is_null() && l != json::value(kNoLabel)) { OAR_ASSIGN(one.labels.back(), label(l, line)); }
      }
      return add(std::move(one));
    }
    OAR_RETURN_IF_ERROR(only(o, {"text", "text_pair", "label"}, line));
    OAR_ASSIGN(one.text, string(o, "text", line));
    if (is_blank(one.text)) return wrong(line, "'text' is empty; remove the line");
    if (o.contains("text_pair")) { OAR_ASSIGN(one.pair, string(o, "text_pair", line)); }
    const json::value* const given = o.if_contains("label");
    if (given == nullptr) return wrong(line, "has no 'label'");
    one.labels.emplace_back();
    OAR_ASSIGN(one.labels[0], label(*given, line));
    return add(std::move(one));
  }

  Status add(LabelledText one) {
    if (one.labels.empty()) return ok_status();  // between two empty lines
    const EncoderHead head = one.tokens.empty() ? EncoderHead::kSequence : EncoderHead::kTokens;
    if (out_.texts.empty()) out_.head = head;
    if (out_.head != head)
      return wrong(one.line,
                   "labels tokens where others label texts, or the other way round; a file has one kind");
    out_.texts.push_back(std::move(one));
    return ok_status();
  }

  std::vector<std::string> names_;
  LabelledFile out_;
};

Result<int32_t> place_of(const std::string& label, const std::vector<std::string>& classes,
                         const LineReader& at, int64_t line) {
  const auto it = std::find(classes.begin(), classes.end(), label);
  if (it != classes.end()) return static_cast<int32_t>(it - classes.begin());
  const auto n = whole_number(label);
  if (n && *n >= 0 && *n < static_cast<int64_t>(classes.size())) return static_cast<int32_t>(*n);
  return at.wrong(line, cat("the label '", label.substr(0, 64), "' is none of the classes ",
                            name_list(classes), "; correct it, or name all classes with --labels"));
}

// Rows of one text with their labels.
Result<EncoderTokens> encode(const LabelledText& t, const std::vector<int32_t>& places,
                             const TextEncoder& encoder, const DataOptions& options,
                             std::vector<int32_t>& labels) {
  EncoderTokens row;
  if (t.tokens.empty()) {
    if (t.pair) {
      OAR_ASSIGN(row, encoder.encode_pair(t.text, *t.pair, true));
    } else {
      OAR_ASSIGN(row, encoder.encode(t.text, options.length));
    }
    labels.assign(row.ids.size(), -1);
    labels[0] = places[0];
    return row;
  }
  // As in a text: what is not its first word has a space before it.
  std::vector<int32_t> ids, of_ids;
  for (size_t k = 0; k < t.tokens.size(); ++k) {
    OAR_ASSIGN(const auto word, encoder.tokenizer().encode((k > 0 ? " " : "") + t.tokens[k],
                                                           {.add_special_tokens = false, .plain = {}}));
    if (word.empty()) return invalid_argument(cat("token ", k + 1, " becomes no id; remove it"));
    of_ids.push_back(places[k]);
    ids.insert(ids.end(), word.begin(), word.end());
    of_ids.resize(ids.size(), -1);
  }
  OAR_ASSIGN(row, encoder.surround(std::move(ids), options.length));
  labels.assign(row.ids.size(), -1);
  for (size_t k = encoder.before(); k + encoder.behind() < row.ids.size(); ++k)
    labels[k] = of_ids[k - encoder.before()];
  return row;
}

}  // namespace

Result<LabelledFile> read_labelled(const DataFile& file, std::string_view contents) {
  LabelReader reader(file);
  const std::string kind = std::filesystem::path(file.path).extension().string();
  if (kind != ".tsv" && kind != ".jsonl")
    return invalid_argument(
        cat(file.path, ": the name ends in '", kind, "'; labels for an encoder come as .tsv or .jsonl"));
  OAR_RETURN_IF_ERROR(kind == ".tsv" ? reader.tsv(contents) : reader.lines(contents));
  return reader.finish();
}

Result<std::vector<LabelledFile>> load_labelled(const std::vector<std::string>& arguments,
                                                std::string_view label) {
  std::vector<LabelledFile> out;
  for (const std::string& argument : arguments) {
    OAR_ASSIGN(const DataFile file, parse_data_file(argument));
    OAR_ASSIGN(const std::string contents, read_data_file(file, label));
    OAR_ASSIGN(LabelledFile read, read_labelled(file, contents));
    if (!out.empty() && out[0].head != read.head)
      return invalid_argument(cat(label, ": ", out[0].file.path, " and ", read.file.path,
                                  " differ: one labels texts, the other tokens"));
    out.push_back(std::move(read));
  }
  return out;
}

std::vector<std::string> labels_of(const std::vector<LabelledFile>& files) {
  std::set<std::string> names;
  for (const LabelledFile& f : files)
    for (const LabelledText& t : f.texts)
      for (const auto& l : t.labels)
        if (l) names.insert(*l);
  std::vector<std::string> out(names.begin(), names.end());
  if (std::all_of(out.begin(), out.end(), [](const auto& l) { return whole_number(l).has_value(); }))
    std::sort(out.begin(), out.end(),
              [](const auto& a, const auto& b) { return *whole_number(a) < *whole_number(b); });
  return out;
}

Result<std::vector<FileSamples>> label_samples(const std::vector<LabelledFile>& files,
                                               const std::vector<std::string>& classes,
                                               const TextEncoder& encoder, const DataOptions& options) {
  std::vector<FileSamples> out;
  for (const LabelledFile& f : files) {
    const LineReader at(f.file.path);
    FileSamples& made = out.emplace_back();
    made.file = f.file;
    for (const LabelledText& t : f.texts) {
      std::vector<int32_t> places;
      for (const auto& l : t.labels) {
        const int64_t line = t.line + (t.token_a_line ? static_cast<int64_t>(places.size()) : 0);
        places.push_back(-1);
        if (l) { OAR_ASSIGN(places.back(), place_of(*l, classes, at, line)); }
      }
      Sample s;
      auto row = encode(t, places, encoder, options, s.labels);
      if (!row.ok()) return at.wrong(t.line, row.status().message());
      if (row->left_out > 0 && options.too_long == TooLong::kRefuse)
        return at.wrong(t.line, cat("the text has ", row->ids.size() + static_cast<size_t>(row->left_out),
                                    " tokens, above --length ", options.length,
                                    "; raise it, shorten the text or choose --too-long cut"));
      if (std::all_of(s.labels.begin(), s.labels.end(), [](int32_t l) { return l < 0; }))
        return at.wrong(t.line, "no token that is kept has a label; remove the text");
      made.cut += row->left_out > 0;
      s.tokens = std::move(row->ids), s.types = std::move(row->types);
      made.samples.push_back(std::move(s));
    }
  }
  return out;
}

}  // namespace oar::train
