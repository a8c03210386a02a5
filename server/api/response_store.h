// Responses that have ended, for requests that go on with one (previous_response_id) and for who asks for one
// again. Bounded in memory: the one unused for longest is forgotten first, and all are when the server ends.
// Any thread.
#pragma once

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
  explicit ResponseStore(size_t max_bytes) : max_bytes_(max_bytes) {}

  // `owner`: the name of the key that asked, the only one that may go on. What alone is larger than the store
  // is not kept.
  void put(const std::string& owner, std::string id, StoredResponse response);
  // NOT_FOUND for what was never there, is forgotten, or is another's.
  Result<StoredResponse> find(const std::string& owner, const std::string& id);
  Status erase(const std::string& owner, const std::string& id);
  size_t bytes() const;

 private:
  struct Kept {
    std::string owner, id;
    StoredResponse response;
    size_t bytes;
  };
  using Place = std::list<Kept>::iterator;
  Result<Place> locate(const std::string& owner, const std::string& id);  // with the lock
  void forget(Place place);                                               // with the lock
  const size_t max_bytes_;
  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // latest first
  std::map<std::string, Place, std::less<>> by_id_;
  size_t bytes_ = 0;
};

}  // namespace oar::api
