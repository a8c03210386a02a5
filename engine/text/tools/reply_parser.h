// A model's reply taken apart as it arrives: reasoning, the answer, and tool calls, whatever the style they
// are written in. Where the text is cut into pieces has no influence on what comes out, put together.
//
// What is no call after all, though it began like one, is text of the answer. Nothing is judged: a call of a
// tool that nobody offered and arguments that are no JSON reach the caller, who knows what to do with them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tools/call_reader.h"
#include "engine/text/tools/reply_format.h"

namespace oar {

// A piece of one call. The first of a call has its name and id.
struct ToolCallDelta {
  int32_t index = 0;  // which call of the reply
  std::string id, name;
  std::string arguments;  // JSON text, appended to what came before
};

struct ReplyDelta {
  std::string content, reasoning;
  std::vector<ToolCallDelta> calls;
  bool empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
};

class ReplyParser final : tools::CallSink {
 public:
  explicit ReplyParser(std::shared_ptr<const ReplyFormat> format);
  ReplyParser(const ReplyParser&) = delete;
  ~ReplyParser() override;

  // Appends to `out`.
  void push(std::string_view text, ReplyDelta& out);
  // The text is over: what was held back.
  void finish(ReplyDelta& out);
  int32_t calls() const { return calls_; }
  // Nothing more is read: the one call that was allowed is complete.
  bool done() const { return stopped_; }
  // Whether the text so far ends in reasoning.
  bool in_reasoning() const {
    return state_ == State::kReasoning || (state_ == State::kBody && channel_ == Channel::kReasoning);
  }

 private:
  enum class State {
    kStart,      // of the answer, or of what is before it
    kReasoning,  //
    kContent,    //
    kBetween,    // calls of a section
    kCall,       //
    kAfterCall,  // up to the call's end marker
    kHeader,     // harmony: of a message
    kBody,       // harmony: of a message
  };

  void run(bool final);
  bool step(bool final);
  bool start(std::string_view text, bool final);
  bool reasoning(std::string_view text, bool final);
  bool content(std::string_view text, bool final);
  bool between(std::string_view text, bool final);
  bool call(std::string_view text, bool final);
  bool after_call(std::string_view text);
  bool header(std::string_view text, bool final);
  bool body(std::string_view text, bool final);

  void take(size_t bytes, bool keep);
  void open_call();
  void give_up_call();
  void add_content(std::string_view text);
  void add_reasoning(std::string_view text);
  ToolCallDelta& delta();

  // CallSink
  bool begin(std::string_view name, std::string_view id) override;
  void arguments(std::string_view json) override;
  void end() override;

  const std::shared_ptr<const ReplyFormat> format_;
  const tools::ToolStyle* style_;
  State state_ = State::kStart;
  std::string pending_;  // text that is not read yet
  size_t read_ = 0;      // of it
  ReplyDelta* out_ = nullptr;
  std::unique_ptr<tools::CallReader> reader_;
  std::string raw_;          // what began like a call, until it is one
  std::string space_;        // held back: it may be the last before a marker
  bool bare_ = false;        // the call under way has no marker
  bool committed_ = false;   // it has a name
  bool open_ = false;        // and has not ended
  bool skip_space_ = false;  // before the first character
  bool wrote_content_ = false, wrote_reasoning_ = false;
  bool reasoned_ = false;
  bool stopped_ = false;
  bool messages_ = false;  // harmony: one has begun
  int32_t calls_ = 0;
  enum class Channel { kContent, kReasoning, kCall } channel_ = Channel::kContent;  // harmony: of the body
};

}  // namespace oar
