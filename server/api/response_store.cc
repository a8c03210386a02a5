#include "server/api/response_store.h"

#include <algorithm>

#include "engine/base/format.h"

namespace oar::api {
namespace {

// What a JSON value takes, near enough for a bound: its text and its nodes.
size_t size_of(const json::value& v) {
  size_t bytes = sizeof(json::value);
  if (v.is_string()) bytes += v.get_string().size();
  if (const json::array* list = v.if_array())
    for (const json::value& one : *list) bytes += size_of(one);
  if (const json::object* object = v.if_object())
    for (const auto& member : *object)
      bytes += 2 * sizeof(void*) + member.key().size() + size_of(member.value());
  return bytes;
}

size_t size_of(const StoredResponse& response) {
  constexpr size_t kNodes = 256;  // of the list and the map, and the names
  size_t bytes = kNodes + response.body.size();
  for (const json::value& item : response.input) bytes += size_of(item);
  for (const ChatMessage& m : response.messages) {
    bytes += sizeof m + m.role.size() + (m.content ? m.content->size() : 0);
    for (const auto& member : m.other) bytes += member.key().size() + size_of(member.value());
  }
  return bytes;
}

}  // namespace

void ResponseStore::forget(Place place) {
  bytes_ -= place->bytes;
  by_id_.erase(place->id);
  kept_.erase(place);
}

Result<ResponseStore::Place> ResponseStore::locate(const std::string& owner, const std::string& id) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end() || it->second->owner != owner)
    return Status(StatusCode::kNotFound, cat("there is no ", what_, " ", id, ", or no longer"),
                  cat(what_, "_id"));
  return it->second;
}

void ResponseStore::put(const std::string& owner, std::string id, StoredResponse response) {
  const size_t bytes = size_of(response);
  if (bytes > max_bytes_) return;
  const std::lock_guard lock(mutex_);
  if (by_id_.contains(id)) return;
  kept_.push_front({owner, id, std::move(response), bytes, number_++});
  by_id_.emplace(std::move(id), kept_.begin());
  bytes_ += bytes;
  shrink();
}

void ResponseStore::shrink() {
  while (bytes_ > max_bytes_) forget(std::prev(kept_.end()));
}

Status ResponseStore::amend(const std::string& owner, const std::string& id,
                            const std::function<void(StoredResponse&)>& change) {
  const std::lock_guard lock(mutex_);
  OAR_ASSIGN(const Place place, locate(owner, id));
  change(place->response);
  const size_t bytes = size_of(place->response);
  bytes_ += bytes - place->bytes;
  place->bytes = bytes;
  kept_.splice(kept_.begin(), kept_, place);
  shrink();
  return ok_status();
}

std::vector<std::string> ResponseStore::bodies(const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  std::vector<const Kept*> theirs;
  for (const Kept& kept : kept_)
    if (kept.owner == owner) theirs.push_back(&kept);
  std::sort(theirs.begin(), theirs.end(), [](const Kept* a, const Kept* b) { return a->number < b->number; });
  std::vector<std::string> out;
  for (const Kept* kept : theirs) out.push_back(kept->response.body);
  return out;
}

Result<StoredResponse> ResponseStore::find(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  OAR_ASSIGN(const Place place, locate(owner, id));
  kept_.splice(kept_.begin(), kept_, place);
  return place->response;
}

Status ResponseStore::erase(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  OAR_ASSIGN(const Place place, locate(owner, id));
  forget(place);
  return ok_status();
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace oar::api
