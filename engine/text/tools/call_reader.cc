#include "engine/text/tools/call_reader.h"

#include "engine/text/utf8.h"

namespace oar::tools {

CallReader::CallReader(const ToolStyle& style) : style_(style) {
  for (const std::string_view marker : {style.call_end, style.section_end})
    if (!marker.empty()) ends_.push_back(marker);
}

CallReader::Result CallReader::read(std::string_view text, bool final, CallSink& sink) {
  size_t used = 0;
  while (used < text.size()) {
    const std::string_view rest = text.substr(used);
    if (at_boundary()) {
      bool maybe = false;
      for (const std::string_view marker : ends_) {
        const Found found = begins_with(rest, marker, final);
        if (found == Found::kYes) return {used, close(sink, true)};
        maybe |= found == Found::kMaybe;
      }
      if (maybe) return {used, Status::kMore};
    }
    const Result r = step(rest, final, sink);
    used += r.used;
    if (r.status != Status::kMore) return {used, r.status};
    if (r.used == 0) break;
  }
  if (final) return {text.size(), close(sink, false)};
  return {used, Status::kMore};
}

bool JsonStringReader::put(char c, std::string& out) {
  if (digits_ > 0) {
    const int digit = c >= '0' && c <= '9'                     ? c - '0'
                      : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                               : -1;
    if (digit >= 0) {
      code_ = code_ << 4 | static_cast<uint32_t>(digit);
      if (--digits_ == 0) unit(code_, out);
      return true;
    }
    digits_ = 0;  // no escape after all: what was read of it is lost, and c counts
  }
  if (escaped_) {
    escaped_ = false;
    switch (c) {
      case 'u':
        digits_ = 4;
        code_ = 0;
        return true;
      case 'n': unit('\n', out); return true;
      case 't': unit('\t', out); return true;
      case 'r': unit('\r', out); return true;
      case 'b': unit('\b', out); return true;
      case 'f': unit('\f', out); return true;
      default:
        unit(0, out);
        out += c;
        return true;
    }
  }
  if (c == '\\') {
    escaped_ = true;
    return true;
  }
  unit(0, out);
  if (c == '"') return false;
  out += c;
  return true;
}

// A code unit of UTF-16; 0 is none, and ends a half pair that is waiting.
void JsonStringReader::unit(uint32_t code, std::string& out) {
  if (surrogate_ != 0) {
    const bool pair = code >= 0xDC00 && code < 0xE000;
    const uint32_t whole = 0x10000 + ((surrogate_ - 0xD800) << 10) + (code - 0xDC00);
    append_utf8(out, pair ? static_cast<char32_t>(whole) : kReplacementCharacter);
    surrogate_ = 0;
    if (pair) return;
  }
  if (code >= 0xD800 && code < 0xDC00) surrogate_ = code;
  else if (code >= 0xDC00 && code < 0xE000) append_utf8(out, kReplacementCharacter);
  else if (code != 0) append_utf8(out, static_cast<char32_t>(code));
}

bool JsonExtent::put(char c) {
  if (complete_) return false;
  if (string_) {
    if (escape_) escape_ = false;
    else if (c == '\\') escape_ = true;
    else if (c == '"') {
      string_ = false;
      complete_ = depth_ == 0;
    }
    return true;
  }
  const bool closes = c == '}' || c == ']';
  if (scalar_ && (closes || c == ',' || is_space(c))) {
    complete_ = true;
    return false;
  }
  if (scalar_) return true;
  if (c == '"') string_ = true;
  else if (c == '{' || c == '[') ++depth_;
  else if (closes) complete_ = --depth_ <= 0;
  else if (depth_ == 0) scalar_ = true;
  return true;
}

std::unique_ptr<CallReader> make_reader(const ToolStyle& style, const std::vector<Tool>& tools) {
  switch (style.syntax) {
    case CallSyntax::kJson: return json_reader(style);
    case CallSyntax::kNamedJson: return named_json_reader(style);
    case CallSyntax::kParameters: return parameters_reader(style, tools);
    case CallSyntax::kPythonic: return pythonic_reader(style);
    case CallSyntax::kBraces: return braces_reader(style);
    case CallSyntax::kHarmony: break;  // has no reader: harmony_reader.h
  }
  return nullptr;
}

}  // namespace oar::tools
