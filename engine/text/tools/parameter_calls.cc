// Calls whose arguments stand one by one between markers: Qwen3-Coder, GLM, DeepSeek V3.2, MiniMax. Such a
// value has no quotes, so the tool's schema says what it is: a string as it stands, anything else as the JSON
// that it reads as, and as a string where it is none.
#include "engine/base/json.h"
#include "engine/text/json_text.h"
#include "engine/text/tools/call_reader.h"

namespace oar::tools {
namespace {

class Parameters final : public CallReader {
 public:
  Parameters(const ToolStyle& style, const std::vector<Tool>& tools) : CallReader(style), tools_(tools) {}

 private:
  enum class State { kName, kBetween, kKey, kBefore, kValue };

  bool at_boundary() const override { return state_ != State::kValue && state_ != State::kBefore; }

  Status close(CallSink& sink, bool marker) override {
    if (state_ == State::kName && (!marker || !begin(sink))) return Status::kFailed;
    if (!marker) return Status::kDone;  // cut: as far as it came
    if (count_ == 0) sink.arguments("{");
    sink.arguments("}");
    sink.end();
    return Status::kDone;
  }

  Result step(std::string_view text, bool final, CallSink& sink) override {
    switch (state_) {
      case State::kName: return name(text, final, sink);
      case State::kBetween:
        return until(text, final, style_.key_begin, nullptr, [&] {
          key_.clear();
          state_ = State::kKey;
          return true;
        });
      case State::kKey:
        return until(text, final, style_.key_end, &key_, [&] {
          begin_value(sink);
          return true;
        });
      case State::kBefore:
        return until(text, final, style_.value_begin, &attributes_, [&] {
          // DeepSeek says of each value whether it is a string.
          if (attributes_.find("string=\"true\"") != attributes_.npos) type_ = ArgumentType::kString;
          if (attributes_.find("string=\"false\"") != attributes_.npos) type_ = ArgumentType::kOther;
          open_value(sink);
          return true;
        });
      case State::kValue: return value(text, final, sink);
    }
    return {0, Status::kFailed};
  }

  // The marker, or one byte for `into`; then `reached` decides whether this goes on.
  template <class F>
  Result until(std::string_view text, bool final, std::string_view marker, std::string* into, F reached) {
    const Found found = begins_with(text, marker, final);
    if (found == Found::kMaybe) return {0, Status::kMore};
    if (found == Found::kYes)
      return reached() ? Result{marker.size(), Status::kMore} : Result{0, Status::kFailed};
    if (into) *into += text[0];
    return {1, Status::kMore};
  }

  Result name(std::string_view text, bool final, CallSink& sink) {
    if (name_.empty() && is_space(text[0])) return {1, Status::kMore};
    // A call without arguments has nothing between its name and its end; one may follow without a line's end.
    if (const Found found = begins_with(text, style_.key_begin, final); found != Found::kNo) {
      if (found == Found::kMaybe) return {0, Status::kMore};
      if (!begin(sink)) return {0, Status::kFailed};
      return step(text, final, sink);
    }
    if (name_.size() > kMaxToolName) return {0, Status::kFailed};
    return until(text, final, style_.name_end, &name_, [&] { return begin(sink); });
  }

  bool begin(CallSink& sink) {
    const std::string_view name = strip_space(name_);
    if (name.empty() || name.size() > kMaxToolName || name.find_first_of(" \n\t<>\"{") != name.npos)
      return false;
    tool_ = find_tool(tools_, name);
    state_ = State::kBetween;
    return sink.begin(name, {});
  }

  void begin_value(CallSink& sink) {
    const std::string_view key = strip_space(key_);
    type_ = argument_type(tool_, key);
    std::string json = count_++ == 0 ? "{\"" : ",\"";
    append_json_escaped(json, key);
    json += "\":";
    sink.arguments(json);
    attributes_.clear();
    state_ = State::kBefore;
    if (style_.value_begin.empty()) open_value(sink);
  }

  void open_value(CallSink& sink) {
    state_ = State::kValue;
    value_.clear();
    lead_ = style_.value_lines;
    line_ = false;
    if (type_ == ArgumentType::kString) sink.arguments("\"");
  }

  Result value(std::string_view text, bool final, CallSink& sink) {
    if (lead_ && text[0] == '\n') {
      lead_ = false;
      return {1, Status::kMore};
    }
    lead_ = false;
    const std::string_view markers[] = {style_.value_end};
    const MarkerSearch found = search_markers(text, markers, final);
    if (found.clear > 0) add(text.substr(0, found.clear), sink);
    if (found.found < 0) return {found.clear, Status::kMore};
    end_value(sink);
    return {found.clear + style_.value_end.size(), Status::kMore};
  }

  // The last line's end belongs to the notation: it waits for what follows.
  void add(std::string_view text, CallSink& sink) {
    std::string whole = std::exchange(line_, false) ? "\n" : "";
    whole += text;
    if (style_.value_lines && whole.back() == '\n') {
      line_ = true;
      whole.pop_back();
    }
    if (type_ != ArgumentType::kString) {
      value_ += whole;
      return;
    }
    std::string json;
    append_json_escaped(json, whole);
    if (!json.empty()) sink.arguments(json);
  }

  void end_value(CallSink& sink) {
    state_ = State::kBetween;
    if (type_ == ArgumentType::kString) return sink.arguments("\"");
    const std::string_view core = strip_space(value_);
    // As Python spells them.
    const std::string_view literal = core == "True"    ? "true"
                                     : core == "False" ? "false"
                                     : core == "None"  ? "null"
                                                       : core;
    const bool null_only = type_ == ArgumentType::kStringOrNull;
    if (null_only ? literal == "null" : parse_json(literal, "argument").ok()) return sink.arguments(literal);
    if (!null_only && (core.starts_with('{') || core.starts_with('['))) {
      const std::string converted = python_to_json(core);
      if (!converted.empty() && parse_json(converted, "argument").ok()) return sink.arguments(converted);
    }
    std::string json = "\"";
    append_json_escaped(json, value_);
    sink.arguments(json += '"');
  }

  const std::vector<Tool>& tools_;
  const Tool* tool_ = nullptr;
  State state_ = State::kName;
  std::string name_, key_, attributes_, value_;
  ArgumentType type_ = ArgumentType::kOther;
  int64_t count_ = 0;  // arguments
  bool lead_ = false;  // the value's first character is to come, and a line's end there is not part of it
  bool line_ = false;  // a line's end is held back
};

}  // namespace

std::unique_ptr<CallReader> parameters_reader(const ToolStyle& style, const std::vector<Tool>& tools) {
  return std::make_unique<Parameters>(style, tools);
}

}  // namespace oar::tools
