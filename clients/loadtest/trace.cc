#include "clients/loadtest/trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/tensor/mapped_file.h"

namespace oar::loadtest {
namespace {

constexpr uint64_t kMaxFile = uint64_t{1} << 30;
constexpr int64_t kMaxTokens = int64_t{1} << 24;  // of one request; beyond it is a mistake in the file
constexpr size_t kMaxColumns = 256;

std::string_view strip(std::string_view s) {
  while (!s.empty() && (s.back() == '\r' || s.back() == ' ' || s.back() == '"')) s.remove_suffix(1);
  while (!s.empty() && (s.front() == ' ' || s.front() == '"')) s.remove_prefix(1);
  return s;
}

std::vector<std::string_view> split(std::string_view line, char separator) {
  std::vector<std::string_view> out;
  while (out.size() < kMaxColumns) {
    const size_t end = line.find(separator);
    out.push_back(strip(line.substr(0, end)));
    if (end == std::string_view::npos) break;
    line.remove_prefix(end + 1);
  }
  return out;
}

template <class T>
std::optional<T> number(std::string_view s) {
  T v{};
  const auto r = std::from_chars(s.data(), s.data() + s.size(), v);
  if (r.ec != std::errc() || r.ptr != s.data() + s.size()) return std::nullopt;
  return v;
}

// Days since 1970-01-01 of a Gregorian date, after Howard Hinnant's days_from_civil.
int64_t days(int64_t y, int64_t m, int64_t d) {
  y -= m <= 2;
  const int64_t era = (y >= 0 ? y : y - 399) / 400, yoe = y - era * 400;
  const int64_t doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
  return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

// "2023-11-16 18:17:03.9799600", also with 'T' and with a zone behind, which is dropped; or seconds.
std::optional<double> seconds(std::string_view s) {
  if (const auto plain = number<double>(s); plain && std::isfinite(*plain)) return plain;
  if (s.size() < 19 || s[4] != '-' || s[7] != '-' || s[13] != ':' || s[16] != ':') return std::nullopt;
  const auto part = [&](size_t at, size_t n) { return number<int64_t>(s.substr(at, n)); };
  const auto y = part(0, 4), mo = part(5, 2), d = part(8, 2), h = part(11, 2), mi = part(14, 2),
             se = part(17, 2);
  if (!y || !mo || !d || !h || !mi || !se || *mo < 1 || *mo > 12) return std::nullopt;
  double fraction = 0, scale = 0.1;
  if (s.size() > 19 && s[19] == '.')
    for (size_t i = 20; i < s.size() && s[i] >= '0' && s[i] <= '9'; ++i, scale /= 10)
      fraction += (s[i] - '0') * scale;
  return static_cast<double>((days(*y, *mo, *d) * 24 + *h) * 3600 + *mi * 60 + *se) + fraction;
}

struct Column {
  const char* what;
  std::vector<std::string_view> names;
  size_t index = kMaxColumns;
};

Status wrong(std::string_view name, size_t line, std::string_view why) {
  return invalid_argument(cat(name, ":", line, ": ", why));
}

class Lines {
 public:
  explicit Lines(std::string_view text) : text_(text) {}
  bool next(std::string_view& line) {
    while (!text_.empty()) {
      const size_t end = text_.find('\n');
      line = text_.substr(0, end);
      text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
      ++number;
      if (!strip(line).empty()) return true;
    }
    return false;
  }
  size_t number = 0;

 private:
  std::string_view text_;
};

Status check_tokens(std::string_view name, size_t line, const char* what, int64_t v, int64_t least) {
  if (v >= least && v <= kMaxTokens) return ok_status();
  return wrong(name, line, cat(what, " is ", v, "; expected ", least, " to ", kMaxTokens));
}

Result<std::vector<TraceEntry>> parse_csv(Lines& lines, std::string_view header, std::string_view name,
                                          size_t limit) {
  Column columns[] = {
      {"time", {"TIMESTAMP", "timestamp", "arrived_at", "time"}},
      {"input tokens",
       {"ContextTokens", "input_length", "num_prefill_tokens", "prompt_tokens", "Request tokens"}},
      {"output tokens",
       {"GeneratedTokens", "output_length", "num_decode_tokens", "output_tokens", "Response tokens"}}};
  const auto names = split(header, ',');
  for (Column& c : columns) {
    for (size_t i = 0; i < names.size(); ++i)
      if (c.index == kMaxColumns && std::find(c.names.begin(), c.names.end(), names[i]) != c.names.end())
        c.index = i;
    if (c.index == kMaxColumns) {
      std::string wanted;
      for (const auto n : c.names) wanted += cat(wanted.empty() ? "" : ", ", n);
      return wrong(name, lines.number,
                   cat("no column for ", c.what, "; the header must have one of ", wanted));
    }
  }
  std::vector<TraceEntry> out;
  for (std::string_view line; out.size() < limit && lines.next(line);) {
    const auto cells = split(line, ',');
    for (const Column& c : columns)
      if (c.index >= cells.size())
        return wrong(name, lines.number, cat("has no ", names[c.index], " column"));
    const auto at = seconds(cells[columns[0].index]);
    const auto in = number<int64_t>(cells[columns[1].index]),
               answer = number<int64_t>(cells[columns[2].index]);
    if (!at)
      return wrong(name, lines.number,
                   cat(names[columns[0].index], " '", cells[columns[0].index], "' is no time"));
    if (!in || !answer) return wrong(name, lines.number, "token counts must be whole numbers");
    OAR_RETURN_IF_ERROR(check_tokens(name, lines.number, "input tokens", *in, 0));
    OAR_RETURN_IF_ERROR(check_tokens(name, lines.number, "output tokens", *answer, 0));
    out.push_back({*at, *in, *answer, {}});
  }
  return out;
}

Result<int64_t> member(const json::object& o, const char* key, std::string_view name, size_t line) {
  const json::value* v = o.if_contains(key);
  if (v == nullptr) return wrong(name, line, cat("has no \"", key, "\""));
  json::error_code ec;
  const int64_t n = v->to_number<int64_t>(ec);
  if (ec) return wrong(name, line, cat("\"", key, "\" must be a whole number"));
  return n;
}

Result<std::vector<TraceEntry>> parse_jsonl(Lines& lines, std::string_view first, std::string_view name,
                                            size_t limit) {
  std::vector<TraceEntry> out;
  std::string_view line = first;
  do {
    auto parsed = parse_json(line, cat(name, ":", lines.number));
    OAR_RETURN_IF_ERROR(parsed.status());
    const json::object* o = parsed->if_object();
    if (o == nullptr) return wrong(name, lines.number, "is no JSON object");
    TraceEntry e;
    OAR_ASSIGN(const int64_t ms, member(*o, "timestamp", name, lines.number));
    OAR_ASSIGN(e.input_tokens, member(*o, "input_length", name, lines.number));
    OAR_ASSIGN(e.output_tokens, member(*o, "output_length", name, lines.number));
    OAR_RETURN_IF_ERROR(check_tokens(name, lines.number, "input_length", e.input_tokens, 0));
    OAR_RETURN_IF_ERROR(check_tokens(name, lines.number, "output_length", e.output_tokens, 0));
    e.at = static_cast<double>(ms) / 1000;
    if (const json::value* ids = o->if_contains("hash_ids")) {
      if (!ids->is_array()) return wrong(name, lines.number, "\"hash_ids\" must be an array");
      for (const json::value& id : ids->get_array()) {
        if (!id.is_int64()) return wrong(name, lines.number, "\"hash_ids\" must hold whole numbers");
        e.prefix_blocks.push_back(id.get_int64());
      }
    }
    out.push_back(std::move(e));
  } while (out.size() < limit && lines.next(line));
  return out;
}

}  // namespace

Result<std::vector<TraceEntry>> parse_trace(std::string_view text, std::string_view name, int64_t limit) {
  Lines lines(text);
  std::string_view first;
  if (!lines.next(first)) return invalid_argument(cat(name, " is empty; a trace has one request per line"));
  const size_t most = limit > 0 ? static_cast<size_t>(limit) : SIZE_MAX;
  auto entries = strip(first).front() == '{' ? parse_jsonl(lines, first, name, most)
                                             : parse_csv(lines, first, name, most);
  OAR_RETURN_IF_ERROR(entries.status());
  if (entries->empty()) return invalid_argument(cat(name, " has a header but no requests"));
  std::stable_sort(entries->begin(), entries->end(),
                   [](const auto& a, const auto& b) { return a.at < b.at; });
  const double start = entries->front().at;
  for (TraceEntry& e : *entries) e.at -= start;
  return entries;
}

Result<std::vector<TraceEntry>> read_trace(const std::string& path, int64_t limit) {
  OAR_ASSIGN(const std::string text, read_small_file(path, kMaxFile));
  return parse_trace(text, path, limit);
}

}  // namespace oar::loadtest
