// One choice as a list of parts in the order in which the model wrote them: reasoning, text, calls. That is
// how Anthropic's messages and OpenAI's responses show an answer; chat completions have one of each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/runtime/text_stream.h"
#include "server/api/json_writer.h"

namespace oar::api {

struct ReplyPart {
  enum class Kind { kReasoning, kText, kCall };
  Kind kind = Kind::kText;
  std::string text;      // of a call its arguments, JSON as the model wrote it
  std::string id, name;  // of a call
};

class ReplyParts {
 public:
  // Told of each change, in order. One part is open at a time.
  class Watcher {
   public:
    virtual void opened(size_t part) = 0;
    virtual void grown(size_t part, std::string_view piece) = 0;
    virtual void closed(size_t part) = 0;

   protected:
    ~Watcher() = default;
  };

  // `watcher` may be null.
  void add(const TextEvent& event, Watcher* watcher);
  void close(Watcher* watcher);
  const std::vector<ReplyPart>& all() const { return parts_; }
  const ReplyPart& operator[](size_t i) const { return parts_[i]; }

 private:
  void grow(ReplyPart::Kind kind, std::string_view piece, Watcher* watcher);
  void open(ReplyPart part, Watcher* watcher);

  std::vector<ReplyPart> parts_;
  bool open_ = false;  // the last one
};

// The arguments of a call, for protocols where they are an object. What the model wrote is kept as a text,
// {"arguments": ...}, where it is none: cut by length, for instance.
void write_call_input(JsonWriter& w, const std::string& arguments);

}  // namespace oar::api
