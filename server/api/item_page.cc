#include "server/api/item_page.h"

#include <algorithm>

#include "engine/base/format.h"

namespace oar::api {

Result<std::string> page_of(json::array items, const ItemPage& page) {
  if (!page.ascending) std::reverse(items.begin(), items.end());
  const auto named = [&](const json::value& item) {
    const json::string* const id = item.at("id").if_string();
    return id != nullptr && std::string_view(*id) == page.after;
  };
  auto first = items.begin();
  if (!page.after.empty()) {
    first = std::find_if(items.begin(), items.end(), named);
    if (first == items.end())
      return invalid_argument(cat("after: the list has no item ", page.after), "after");
    ++first;
  }
  const auto last = first + std::min<std::ptrdiff_t>(page.limit, items.end() - first);
  json::object out{{"object", "list"}, {"data", json::array(first, last)}, {"has_more", last != items.end()}};
  out["first_id"] = first == last ? json::value() : first->at("id");
  out["last_id"] = first == last ? json::value() : (last - 1)->at("id");
  return json::serialize(out);
}

}  // namespace oar::api
