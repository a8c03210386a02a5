// OpenAI's lists, a part at a time: /v1/files, /v1/batches, /v1/responses/{id}/input_items.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace oar::api {

// Which part of a list is asked for.
struct ItemPage {
  int64_t limit = 20;
  bool ascending = false;  // latest first otherwise
  std::string after;       // the item before the first; empty: from the beginning
};

// {"object":"list","data":[...],"first_id","last_id","has_more"} of objects with an "id", which come oldest
// first. INVALID_ARGUMENT when `after` is none of them.
Result<std::string> page_of(json::array items, const ItemPage& page);

}  // namespace oar::api
