// OpenAI's conversations: lists of items that responses go on with, and that grow by what they answer.
// Bounded in memory as stored responses are.
#include <algorithm>
#include <ctime>
#include <functional>

#include "engine/base/format.h"
#include "server/api/frontend.h"
#include "server/api/metadata_field.h"
#include "server/api/responses_request.h"
#include "server/api/stored_items.h"

namespace oar::api {
namespace {

constexpr size_t kMostItems = 20;  // of one call, OpenAI's

std::string conversation_json(const std::string& id, int64_t created, const json::object& metadata) {
  return json::serialize(json::object{
      {"id", json::string(id)}, {"object", "conversation"}, {"created_at", created}, {"metadata", metadata}});
}

// Items as they are listed, each with an id of its own. Whether they can be read is seen as it is for
// requests.
Result<json::array> read_items(Fields& f) {
  const json::array* items = f.array("items");
  if (!f.ok()) return f.status();
  if (items == nullptr || items->empty()) return json::array();
  if (items->size() > kMostItems)
    return invalid_argument(cat("items has ", items->size(), " elements; at most ", kMostItems), "items");
  OAR_RETURN_IF_ERROR(check_input_items(*items, "items"));
  return listed_input(*items, make_id("item_"));
}

json::array::iterator find_item(json::array& items, std::string_view id) {
  return std::find_if(items.begin(), items.end(), [&](const json::value& item) {
    const json::string* own = item.at("id").if_string();
    return own != nullptr && std::string_view(*own) == id;
  });
}

Status no_item(const std::string& id) {
  return {StatusCode::kNotFound, cat("the conversation has no item ", id), "item_id"};
}

}  // namespace

Result<std::string> Frontend::make_conversation(const json::object& body,
                                                const RequestContext& context) const {
  Fields f(body);
  json::object metadata;
  read_metadata(f, metadata);
  StoredResponse kept;
  OAR_ASSIGN(kept.input, read_items(f));
  f.refuse_rest();
  if (!f.ok()) return f.status();
  const std::string id = make_id("conv_");
  kept.body = conversation_json(id, static_cast<int64_t>(std::time(nullptr)), metadata);
  std::string out = kept.body;
  conversations_.put(context.owner(), id, std::move(kept));
  return out;
}

Result<std::string> Frontend::stored_conversation(const std::string& id,
                                                  const RequestContext& context) const {
  OAR_ASSIGN(StoredResponse kept, conversations_.find(context.owner(), id));
  return std::move(kept.body);
}

Result<std::string> Frontend::label_conversation(const std::string& id, const json::object& body,
                                                 const RequestContext& context) const {
  return label(conversations_, id, body, context);
}

Result<std::string> Frontend::erase_conversation(const std::string& id, const RequestContext& context) const {
  OAR_RETURN_IF_ERROR(conversations_.erase(context.owner(), id));
  return json::serialize(
      json::object{{"id", json::string(id)}, {"object", "conversation.deleted"}, {"deleted", true}});
}

Result<std::string> Frontend::conversation_items(const std::string& id, const ItemPage& page,
                                                 const RequestContext& context) const {
  OAR_ASSIGN(StoredResponse kept, conversations_.find(context.owner(), id));
  return page_of(std::move(kept.input), page);
}

Result<std::string> Frontend::conversation_item(const std::string& id, const std::string& item,
                                                const RequestContext& context) const {
  OAR_ASSIGN(StoredResponse kept, conversations_.find(context.owner(), id));
  const auto found = find_item(kept.input, item);
  if (found == kept.input.end()) return no_item(item);
  return json::serialize(*found);
}

Result<std::string> Frontend::add_conversation_items(const std::string& id, const json::object& body,
                                                     const RequestContext& context) const {
  Fields f(body);
  f.require("items", "send what is to be added");
  OAR_ASSIGN(json::array items, read_items(f));
  f.refuse_rest();
  if (!f.ok()) return f.status();
  OAR_RETURN_IF_ERROR(conversations_.amend(context.owner(), id, [&](StoredResponse& kept) {
    kept.input.insert(kept.input.end(), items.begin(), items.end());
  }));
  return page_of(std::move(items), {.limit = kMostItems, .ascending = true, .after = {}});
}

Result<std::string> Frontend::erase_conversation_item(const std::string& id, const std::string& item,
                                                      const RequestContext& context) const {
  std::string out;
  OAR_RETURN_IF_ERROR(conversations_.amend(context.owner(), id, [&](StoredResponse& kept) {
    const auto found = find_item(kept.input, item);
    if (found == kept.input.end()) return;
    kept.input.erase(found);
    out = kept.body;
  }));
  if (out.empty()) return no_item(item);
  return out;
}

Result<std::string> Frontend::take_up(json::object& body, const RequestContext& context) const {
  const json::value* asked = body.if_contains("conversation");
  if (asked == nullptr || asked->is_null()) return std::string();
  const json::value* id = asked->is_object() ? asked->get_object().if_contains("id") : asked;
  if (id == nullptr || !id->is_string())
    return invalid_argument(
        cat("conversation must be an id, or an object that has one, got ", describe(*asked)), "conversation");
  if (const json::value* previous = body.if_contains("previous_response_id");
      previous && !previous->is_null())
    return invalid_argument("conversation and previous_response_id exclude each other; send one of them",
                            "previous_response_id");
  std::string name(id->get_string());
  OAR_ASSIGN(StoredResponse kept, conversations_.find(context.owner(), name));
  json::array input = std::move(kept.input);
  if (const json::value* own = body.if_contains("input")) {
    if (own->is_array()) input.insert(input.end(), own->get_array().begin(), own->get_array().end());
    else input.push_back(json::object{{"role", "user"}, {"content", *own}});
  }
  if (!input.empty()) body["input"] = std::move(input);
  body.erase("conversation");
  return name;
}

std::function<void(std::string)> Frontend::grow(const std::string& id, json::array items,
                                                const RequestContext& context) const {
  return [this, id, owner = context.owner(), items = std::move(items)](const std::string& body) {
    const json::value response = json::parse(body);
    // One that was erased meanwhile stays so.
    (void)conversations_.amend(owner, id, [&](StoredResponse& kept) {
      kept.input.insert(kept.input.end(), items.begin(), items.end());
      const json::array& output = response.at("output").as_array();
      kept.input.insert(kept.input.end(), output.begin(), output.end());
    });
  };
}

}  // namespace oar::api
