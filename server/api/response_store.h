// Conversations that ended in a response, for requests that go on with one (previous_response_id). Bounded in
// memory: the one unused for longest is forgotten first, and all are when the server ends. Any thread.
#pragma once

#include <list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "server/api/generation_request.h"

namespace oar::api {

class ResponseStore {
 public:
  explicit ResponseStore(size_t max_bytes) : max_bytes_(max_bytes) {}

  // `owner`: the name of the key that asked, the only one that may go on. What alone is larger than the store
  // is not kept.
  void put(const std::string& owner, std::string id, std::vector<ChatMessage> messages);
  // NOT_FOUND for what was never there, is forgotten, or is another's.
  Result<std::vector<ChatMessage>> find(const std::string& owner, const std::string& id);
  size_t bytes() const;

 private:
  struct Kept {
    std::string owner, id;
    std::vector<ChatMessage> messages;
    size_t bytes;
  };
  const size_t max_bytes_;
  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // latest first
  std::map<std::string, std::list<Kept>::iterator, std::less<>> by_id_;
  size_t bytes_ = 0;
};

}  // namespace oar::api
