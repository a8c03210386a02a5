// Responses that have ended, for requests that go on with one (previous_response_id) and for who asks for one
// again; chats that were to be stored, and conversations, likewise. Bounded in memory: the one unused for
// longest is forgotten first, and all are when the server ends. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "server/api/generation_request.h"

namespace oar::api {

struct StoredResponse {
  std::vector<ChatMessage> messages;  // the conversation without instructions, the answer last
  json::array input;  // items of its own request, as /v1/responses/{id}/input_items lists them
  std::string body;   // the answer
};

class ResponseStore {
 public:
  // `what` it keeps, for messages; static.
  explicit ResponseStore(size_t max_bytes, const char* what = "response")
      : max_bytes_(max_bytes), what_(what) {}

  // `owner`: the name of the key that asked, the only one that may go on. What alone is larger than the store
  // is not kept.
  void put(const std::string& owner, std::string id, StoredResponse response);
  // NOT_FOUND for what was never there, is forgotten, or is another's.
  Result<StoredResponse> find(const std::string& owner, const std::string& id);
  // Changes one. What has become larger than the store is forgotten.
  Status amend(const std::string& owner, const std::string& id,
               const std::function<void(StoredResponse&)>& change);
  Status erase(const std::string& owner, const std::string& id);
  // All of theirs, oldest first.
  std::vector<std::string> bodies(const std::string& owner) const;
  size_t bytes() const;

 private:
  struct Kept {
    std::string owner, id;
    StoredResponse response;
    size_t bytes;
    uint64_t number;  // in the order in which they came
  };
  using Place = std::list<Kept>::iterator;
  Result<Place> locate(const std::string& owner, const std::string& id);  // with the lock
  void forget(Place place);                                               // with the lock
  void shrink();                                                          // with the lock
  const size_t max_bytes_;
  const char* const what_;
  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // latest first
  std::map<std::string, Place, std::less<>> by_id_;
  size_t bytes_ = 0;
  uint64_t number_ = 0;
};

}  // namespace oar::api
