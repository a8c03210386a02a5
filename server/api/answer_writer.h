// What turns the events of one generation into an answer, whatever the protocol: a stream of server-sent
// events, or one JSON document. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "server/api/generation.h"

namespace oar::api {

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // Streaming: what to send for an event, complete records; empty when nothing is due. With the last
  // choice's end it includes what closes the stream; after a failure the error, and nothing ever after.
  virtual std::string on_event(int32_t choice, const TextEvent& event) = 0;
  // Not streaming: collect every event, then read the outcome.
  virtual void collect(int32_t choice, const TextEvent& event) = 0;
  virtual std::string body() const = 0;

  // Of a stream.
  virtual const char* content_type() const { return "text/event-stream; charset=utf-8"; }

  const Status& failure() const { return failure_; }  // of the first choice that failed
  bool finished() const { return finished_; }

 protected:
  bool finished_ = false;
  Status failure_;
};

}  // namespace oar::api
