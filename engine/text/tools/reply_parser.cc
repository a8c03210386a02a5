#include "engine/text/tools/reply_parser.h"

#include <array>

namespace oar {

using namespace tools;  // NOLINT: this is their room

ReplyParser::ReplyParser(std::shared_ptr<const ReplyFormat> format)
    : format_(std::move(format)), style_(format_->calls) {
  const ReasoningStyle* r = format_->reasoning;
  if ((style_ && style_->syntax == CallSyntax::kHarmony) || (r && r->harmony)) {
    state_ = State::kHeader;
  } else if (r && format_->in_reasoning) {
    state_ = State::kReasoning;
    reasoned_ = true;
  }
}

ReplyParser::~ReplyParser() = default;

void ReplyParser::push(std::string_view text, ReplyDelta& out) {
  if (stopped_) return;
  pending_ += text;
  out_ = &out;
  run(false);
}

void ReplyParser::finish(ReplyDelta& out) {
  if (stopped_) return;
  out_ = &out;
  run(true);
  if (state_ == State::kCall || state_ == State::kBetween) give_up_call();
  // A reply that never had a header is an answer. One that was cut says nothing.
  if (state_ == State::kHeader && !messages_ && raw_.find("<|") == std::string::npos) give_up_call();
  // Space at the answer's end is part of it, where nothing but an answer was there.
  if (calls_ == 0 && !skip_space_ && !format_->only_calls &&
      (state_ == State::kStart  ? !reasoned_
       : state_ == State::kBody ? channel_ == Channel::kContent
                                : state_ == State::kContent))
    out.content += space_;
  space_.clear();
}

void ReplyParser::run(bool final) {
  while (!stopped_ && (read_ < pending_.size() || (final && state_ == State::kCall))) {
    if (!step(final)) break;
  }
  pending_.erase(0, read_);
  read_ = 0;
}

// False: more text is needed.
bool ReplyParser::step(bool final) {
  const std::string_view text = std::string_view(pending_).substr(read_);
  switch (state_) {
    case State::kStart: return start(text, final);
    case State::kReasoning: return reasoning(text, final);
    case State::kContent: return content(text, final);
    case State::kBetween: return between(text, final);
    case State::kCall: return call(text, final);
    case State::kAfterCall: return after_call(text);
    case State::kHeader: return header(text, final);
    case State::kBody: return body(text, final);
  }
  return false;
}

void ReplyParser::take(size_t bytes, bool keep) {
  if (keep) raw_.append(pending_, read_, bytes);
  read_ += bytes;
}

bool ReplyParser::start(std::string_view text, bool final) {
  const ReasoningStyle* r = format_->reasoning;
  if (is_space(text[0])) {
    if (!skip_space_) space_ += text[0];
    take(1, false);
    return true;
  }
  if (r && !reasoned_) {
    const Found found = begins_with(text, r->begin, final);
    if (found == Found::kMaybe) return false;
    if (found == Found::kYes) {
      take(r->begin.size(), false);
      space_.clear();
      reasoned_ = true;
      state_ = State::kReasoning;
      return true;
    }
  }
  const char opening = style_ && style_->syntax == CallSyntax::kPythonic ? '[' : '{';
  if (style_ && style_->bare && text[0] == opening) {
    bare_ = true;
    open_call();
    return true;
  }
  state_ = State::kContent;
  return true;
}

bool ReplyParser::reasoning(std::string_view text, bool final) {
  const bool calls = style_ && style_->ends_reasoning;
  const std::array<std::string_view, 3> markers = {
      format_->reasoning->end, calls ? style_->section_begin : "", calls ? style_->call_begin : ""};
  const MarkerSearch found = search_markers(text, markers, final);
  add_reasoning(text.substr(0, found.clear));
  take(found.clear, false);
  if (found.found < 0) return found.clear > 0;
  if (found.found == 0) take(markers[0].size(), false);
  space_.clear();
  skip_space_ = true;
  state_ = found.found == 0 ? State::kStart : State::kContent;
  return true;
}

bool ReplyParser::content(std::string_view text, bool final) {
  std::array<std::string_view, 4> markers = {};
  if (style_) markers = {style_->section_begin, style_->call_begin, "", ""};
  if (format_->reasoning) {
    markers[2] = format_->reasoning->answer_begin;
    markers[3] = format_->reasoning->answer_end;
  }
  const MarkerSearch found = search_markers(text, markers, final);
  add_content(text.substr(0, found.clear));
  take(found.clear, false);
  if (found.found < 0) return found.clear > 0;
  const auto which = static_cast<size_t>(found.found);
  if (which >= 2) {  // around the answer: dropped, with the space inside
    take(markers[which].size(), false);
    space_.clear();
    skip_space_ = true;
    return true;
  }
  take(markers[which].size(), true);
  if (which == 0) state_ = State::kBetween;
  else open_call();
  return true;
}

// Behind a section's beginning or a call. What is no call there ends the calls.
bool ReplyParser::between(std::string_view text, bool final) {
  if (is_space(text[0]) || (calls_ > 0 && (text[0] == ',' || text[0] == ';'))) {
    take(1, !raw_.empty());
    return true;
  }
  bool maybe = false;
  for (const std::string_view marker : {style_->section_begin, style_->section_end, style_->call_begin}) {
    if (marker.empty()) continue;
    const Found found =
        begins_with(text, marker, final && calls_ == 0);  // half of one behind a call is no text
    maybe |= found == Found::kMaybe;
    if (found != Found::kYes) continue;
    take(marker.size(), true);
    if (marker == style_->call_begin) {
      open_call();
    } else if (marker == style_->section_end) {
      raw_.clear();  // a section without calls says nothing
    }
    return true;
  }
  if (maybe) return false;
  if (!raw_.empty()) give_up_call();
  state_ = State::kContent;
  return true;
}

void ReplyParser::open_call() {
  state_ = State::kCall;
  committed_ = open_ = false;
  reader_ = make_reader(*style_, format_->tools);
}

bool ReplyParser::call(std::string_view text, bool final) {
  const CallReader::Result r = reader_->read(text, final, *this);
  take(r.used, !committed_);
  if (r.status == CallReader::Status::kMore) return false;
  if (r.status == CallReader::Status::kFailed && !committed_) {
    give_up_call();
    return true;
  }
  raw_.clear();
  if (open_) end();
  state_ = State::kAfterCall;
  return true;
}

bool ReplyParser::after_call(std::string_view text) {
  const std::string_view marker = style_->call_end;
  const Found found = marker.empty() ? Found::kNo : begins_with(text, marker, false);
  if (found == Found::kMaybe) return false;  // where the reply is cut here, half a marker is no text
  if (found == Found::kYes) take(marker.size(), false);
  // What closes brackets and fences that are open still.
  if (found == Found::kNo && !marker.empty() &&
      (is_space(text[0]) || text[0] == '}' || text[0] == ']' || text[0] == '`')) {
    take(1, false);
    return true;
  }
  bare_ = false;
  state_ = State::kBetween;
  return true;
}

// What was held back is text.
void ReplyParser::give_up_call() {
  std::string text;
  text.swap(raw_);
  reader_.reset();
  state_ = State::kContent;
  add_content(text);
}

void ReplyParser::add_content(std::string_view text) {
  if (format_->only_calls) return;  // part of a call that was cut
  for (size_t i = 0; i < text.size();) {
    if (is_space(text[i])) {
      if (!skip_space_) space_ += text[i];
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && !is_space(text[end])) ++end;
    out_->content += space_;
    space_.clear();
    skip_space_ = false;
    out_->content += text.substr(i, end - i);
    wrote_content_ = true;
    i = end;
  }
}

void ReplyParser::add_reasoning(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (is_space(text[i])) {
      if (wrote_reasoning_) space_ += text[i];
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && !is_space(text[end])) ++end;
    if (format_->show_reasoning) {
      out_->reasoning += space_;
      out_->reasoning += text.substr(i, end - i);
    }
    space_.clear();
    wrote_reasoning_ = true;
    i = end;
  }
}

ToolCallDelta& ReplyParser::delta() {
  const int32_t index = calls_ - 1;
  if (out_->calls.empty() || out_->calls.back().index != index) out_->calls.push_back({index, {}, {}, {}});
  return out_->calls.back();
}

bool ReplyParser::begin(std::string_view name, std::string_view id) {
  if (name.empty())
    return false;  // nobody is called: whoever reads on would take it for more of the last call
  if (bare_ && find_tool(format_->tools, name) == nullptr) return false;  // JSON that happens to have a name
  if (open_) end();
  if (stopped_) return true;
  committed_ = open_ = true;
  raw_.clear();
  ++calls_;
  ToolCallDelta& d = delta();
  d.name = name;
  d.id = id;
  return true;
}

void ReplyParser::arguments(std::string_view json) {
  if (open_ && !json.empty()) delta().arguments += json;
}

void ReplyParser::end() {
  open_ = false;
  stopped_ = !format_->parallel_calls;
}

// ---- harmony: <|start|>assistant<|channel|>analysis<|message|>...<|end|> ----
// https://cookbook.openai.com/articles/openai-harmony. The prompt ends with <|start|>assistant.

bool ReplyParser::header(std::string_view text, bool final) {
  const std::array<std::string_view, 1> markers = {"<|message|>"};
  const MarkerSearch found = search_markers(text, markers, final);
  take(found.clear, true);
  if (found.found < 0) return found.clear > 0;
  take(markers[0].size(), false);
  messages_ = true;
  std::string head;
  head.swap(raw_);
  const auto after = [&](std::string_view marker) -> std::string_view {
    const size_t at = head.rfind(marker);
    if (at == std::string::npos) return {};
    const std::string_view rest = std::string_view(head).substr(at + marker.size());
    return rest.substr(0, rest.find_first_of(" <\n"));
  };
  const std::string_view channel = after("<|channel|>"), to = after("to=");
  constexpr std::string_view kFunctions = "functions.";
  state_ = State::kBody;
  space_.clear();
  committed_ = open_ = false;
  if (style_ && begin(to.starts_with(kFunctions) ? to.substr(kFunctions.size()) : to, {})) {
    channel_ = Channel::kCall;
  } else {
    channel_ = channel == "analysis" && format_->reasoning ? Channel::kReasoning : Channel::kContent;
    // Messages of one kind are apart by a line's end.
    const bool wrote = channel_ == Channel::kReasoning ? wrote_reasoning_ : wrote_content_;
    if (wrote) space_ = "\n";
  }
  return true;
}

bool ReplyParser::body(std::string_view text, bool final) {
  const std::array<std::string_view, 5> markers = {"<|end|>", "<|call|>", "<|return|>", "<|start|>",
                                                   "<|channel|>"};
  const MarkerSearch found = search_markers(text, markers, final && channel_ != Channel::kCall);
  const std::string_view piece = text.substr(0, found.clear);
  switch (channel_) {
    case Channel::kReasoning: add_reasoning(piece); break;
    case Channel::kContent: add_content(piece); break;
    case Channel::kCall: arguments(piece); break;
  }
  take(found.clear, false);
  if (found.found < 0) return found.clear > 0;
  if (channel_ == Channel::kCall) end();
  const bool channel = found.found == 4;  // a header without its <|start|>
  if (!channel) take(markers[static_cast<size_t>(found.found)].size(), false);
  state_ = State::kHeader;
  return true;
}

}  // namespace oar
