// Calls in JSON: {"name": ..., "arguments": {...}}, alone or in an array; and a name with a JSON object
// behind it. Members other than those two are passed over. So is what the object of a name stands in:
// `function`.
#include "engine/text/tools/call_reader.h"

namespace oar::tools {
namespace {

class JsonCalls final : public CallReader {
 public:
  explicit JsonCalls(const ToolStyle& style) : CallReader(style) {}

 private:
  enum class State { kOutside, kMembers, kKey, kColon, kValue, kName, kArguments, kText, kOther };

  bool at_boundary() const override {
    switch (state_) {
      case State::kKey:
      case State::kName:
      case State::kText: return false;
      case State::kArguments:
      case State::kOther: return !extent_.in_string();
      default: return true;
    }
  }
  Status close(CallSink& sink, bool marker) override {
    if (state_ != State::kOutside && begun_ && !marker) return Status::kDone;  // cut: as far as it came
    if (state_ != State::kOutside) finish_call(sink);
    return calls_ > 0 ? Status::kDone : Status::kFailed;
  }

  Result step(std::string_view text, bool, CallSink& sink) override {
    switch (state_) {
      case State::kOutside: return outside(text[0]);
      case State::kMembers: return members(text[0], sink);
      case State::kKey:
        if (!string_.put(text[0], key_)) state_ = State::kColon;
        return used(1);
      case State::kColon:
        if (text[0] == ':') state_ = State::kValue;
        return is_space(text[0]) || text[0] == ':' ? used(1) : failed();
      case State::kValue: return is_space(text[0]) ? used(1) : value(text[0], sink);
      case State::kName:
        if (string_.put(text[0], name_)) return used(1);
        state_ = State::kMembers;
        return named(sink) ? used(1) : failed();
      case State::kArguments:
      case State::kOther: return extent(text[0], sink);
      case State::kText: return arguments_text(text[0], sink);
    }
    return failed();
  }

  static Result used(size_t n) { return {n, Status::kMore}; }
  Result failed() const { return {0, begun_ || calls_ > 0 ? Status::kDone : Status::kFailed}; }

  Result outside(char c) {
    if (c == '{') {
      state_ = State::kMembers;
      nested_ = 0;
      name_.clear();
      held_.clear();
      begun_ = written_ = false;
      return used(1);
    }
    if (c == ']' && array_ && calls_ > 0) return {1, Status::kDone};
    if (!is_space(c) && !(c == '[' && !array_ && calls_ == 0) && !((c == ',' || c == ';') && calls_ > 0))
      return failed();
    array_ |= c == '[';
    return used(1);
  }

  Result members(char c, CallSink& sink) {
    if (c == '"') {
      state_ = State::kKey;
      key_.clear();
      string_ = {};
      return used(1);
    }
    if (c == '}' && nested_ > 0) {
      --nested_;
      return used(1);
    }
    if (c == '}') {
      state_ = State::kOutside;
      return finish_call(sink) ? used(1) : failed();
    }
    return is_space(c) || c == ',' ? used(1) : failed();
  }

  Result value(char c, CallSink& sink) {
    const bool names = key_ == "name" || key_ == "tool_name" || key_ == "function";
    if (names && c == '"' && name_.empty()) {
      string_ = {};
      state_ = State::kName;
      return used(1);
    }
    if (key_ == "function" && c == '{') {
      ++nested_;
      state_ = State::kMembers;
      return used(1);
    }
    extent_ = {};
    const bool arguments = (key_ == "arguments" || key_ == "parameters") && !written_;
    written_ |= arguments;
    if (arguments && c == '"') {  // JSON within a string
      string_ = {};
      state_ = State::kText;
      return used(1);
    }
    state_ = arguments ? State::kArguments : State::kOther;
    return extent(c, sink);
  }

  // A value as it stands: the arguments, or one that is passed over.
  Result extent(char c, CallSink& sink) {
    const bool belongs = extent_.put(c);
    if (belongs && state_ == State::kArguments) write({&c, 1}, sink);
    if (extent_.complete()) state_ = State::kMembers;
    return belongs ? used(1) : members(c, sink);
  }

  Result arguments_text(char c, CallSink& sink) {
    std::string text;
    if (!string_.put(c, text)) state_ = State::kMembers;
    if (!text.empty()) write(text, sink);
    return used(1);
  }

  bool named(CallSink& sink) {
    if (name_.empty() || !sink.begin(name_, {})) return false;
    begun_ = true;
    if (!held_.empty()) sink.arguments(held_);
    return true;
  }
  bool finish_call(CallSink& sink) {
    if (!begun_) return false;
    if (!written_) sink.arguments("{}");
    sink.end();
    ++calls_;
    return true;
  }
  void write(std::string_view json, CallSink& sink) {
    if (begun_) sink.arguments(json);
    else held_ += json;  // the name comes behind
  }

  State state_ = State::kOutside;
  JsonStringReader string_;
  JsonExtent extent_;
  std::string key_, name_, held_;
  int nested_ = 0;
  int64_t calls_ = 0;
  bool array_ = false, begun_ = false, written_ = false;
};

// The name up to its marker or the opening brace, perhaps the model's own id, and one JSON object. What
// begins as JSON instead is read as kJson is: Mistral's templates have written both.
class NamedJson final : public CallReader {
 public:
  explicit NamedJson(const ToolStyle& style) : CallReader(style), json_(style) {}

 private:
  enum class State { kStart, kPrefix, kName, kId, kBefore, kArguments, kJson };

  bool at_boundary() const override { return state_ != State::kJson && !extent_.in_string(); }
  Status close(CallSink& sink, bool marker) override {
    if (state_ == State::kJson) return json_.read({}, true, sink).status;
    if (state_ < State::kBefore && (!marker || !begin(sink))) return Status::kFailed;
    if (!marker) return Status::kDone;  // cut: as far as it came
    if (state_ != State::kArguments) sink.arguments("{}");
    sink.end();
    return Status::kDone;
  }

  Result step(std::string_view text, bool final, CallSink& sink) override {
    const char c = text[0];
    switch (state_) {
      case State::kStart:
        if (is_space(c)) return {1, Status::kMore};
        state_ = c == '{' || c == '['        ? State::kJson
                 : style_.name_begin.empty() ? State::kName
                                             : State::kPrefix;
        return step(text, final, sink);
      case State::kJson: return json_.read(text, final, sink);
      case State::kPrefix:
        if (const Found found = begins_with(text, style_.name_begin, final); found != Found::kNo) {
          if (found == Found::kMaybe) return {0, Status::kMore};
          state_ = State::kName;
          return {style_.name_begin.size(), Status::kMore};
        }
        return {1, Status::kMore};
      case State::kName:
      case State::kId: return name(text, final, sink);
      case State::kBefore:  // spaces, or a fence of Markdown
        if (c != '{') return {1, Status::kMore};
        state_ = State::kArguments;
        [[fallthrough]];
      case State::kArguments: {
        extent_.put(c);
        sink.arguments({&c, 1});
        if (!extent_.complete()) return {1, Status::kMore};
        sink.end();
        return {1, Status::kDone};
      }
    }
    return {0, Status::kFailed};
  }

  Result name(std::string_view text, bool final, CallSink& sink) {
    const std::string_view marks[] = {style_.name_end, style_.id_begin};
    for (const std::string_view mark : marks) {
      if (mark.empty()) continue;
      const Found found = begins_with(text, mark, final);
      if (found == Found::kMaybe) return {0, Status::kMore};
      if (found == Found::kNo) continue;
      if (mark == style_.id_begin) {
        state_ = State::kId;
        return {mark.size(), Status::kMore};
      }
      return begin(sink) ? Result{mark.size(), Status::kMore} : Result{0, Status::kFailed};
    }
    if (text[0] == '{') {
      if (!begin(sink)) return {0, Status::kFailed};
      return step(text, final, sink);
    }
    (state_ == State::kId ? id_ : name_) += text[0];
    return {1, Status::kMore};
  }

  // functions.f:0 of Kimi is the id of a call of f.
  bool begin(CallSink& sink) {
    std::string_view name = strip_space(name_), id = strip_space(id_);
    constexpr std::string_view kFunctions = "functions.";
    if (name.starts_with(kFunctions)) {
      const size_t colon = name.rfind(':');
      if (colon != name.npos) {
        id = name;
        name = name.substr(0, colon);
      }
      name.remove_prefix(kFunctions.size());
    }
    if (name.empty() || name.size() > kMaxToolName || name.find_first_of(" \n\t<>\"") != name.npos)
      return false;
    state_ = State::kBefore;
    return sink.begin(name, id);
  }

  State state_ = State::kStart;
  JsonCalls json_;
  JsonExtent extent_;
  std::string name_, id_;
};

}  // namespace

std::unique_ptr<CallReader> json_reader(const ToolStyle& style) { return std::make_unique<JsonCalls>(style); }
std::unique_ptr<CallReader> named_json_reader(const ToolStyle& style) {
  return std::make_unique<NamedJson>(style);
}

}  // namespace oar::tools
