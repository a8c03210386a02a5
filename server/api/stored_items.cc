#include "server/api/stored_items.h"

#include <algorithm>

#include "engine/base/format.h"
#include "server/api/frontend.h"
#include "server/api/metadata_field.h"

namespace oar::api {

json::array listed_messages(const json::array& messages, std::string_view chat) {
  json::array out;
  for (size_t k = 0; k < messages.size(); ++k) {
    json::object message = messages[k].as_object();
    message["id"] = json::string(cat(chat, "-", k));
    if (message["content"].is_array()) {  // there the parts, here their text
      json::array parts = message["content"].as_array();
      std::string text;
      for (const json::value& part : parts)
        if (const json::value* piece = part.is_object() ? part.get_object().if_contains("text") : nullptr;
            piece && piece->is_string())
          text += std::string_view(piece->get_string());
      message["content"] = json::string(text);
      message["content_parts"] = std::move(parts);
    }
    out.push_back(std::move(message));
  }
  return out;
}

std::string labelled(const std::string& body, const json::object& metadata) {
  json::value v = json::parse(body);
  v.as_object()["metadata"] = metadata;
  return json::serialize(v);
}

Result<std::string> Frontend::stored_response(const std::string& id, const RequestContext& context) const {
  OAR_ASSIGN(StoredResponse kept, responses_.find(context.owner(), id));
  return std::move(kept.body);
}

Result<std::string> Frontend::stored_input(const std::string& id, const ItemPage& page,
                                           const RequestContext& context) const {
  OAR_ASSIGN(StoredResponse kept, responses_.find(context.owner(), id));
  return page_of(std::move(kept.input), page);
}

Result<std::string> Frontend::erase_response(const std::string& id, const RequestContext& context) const {
  OAR_RETURN_IF_ERROR(responses_.erase(context.owner(), id));
  return json::serialize(json::object{{"id", json::string(id)}, {"object", "response"}, {"deleted", true}});
}

Result<std::string> Frontend::stored_chat(const std::string& id, const RequestContext& context) const {
  OAR_ASSIGN(StoredResponse kept, chats_.find(context.owner(), id));
  return std::move(kept.body);
}

Result<std::string> Frontend::stored_chats(const ItemPage& page, const std::string& model,
                                           const json::object& metadata,
                                           const RequestContext& context) const {
  const auto has_labels = [&](const json::value& chat) {
    const json::object& own = chat.at("metadata").as_object();
    return std::all_of(metadata.begin(), metadata.end(), [&](const auto& label) {
      const json::value* const text = own.if_contains(label.key());
      return text != nullptr && *text == label.value();
    });
  };
  json::array items;
  for (const std::string& body : chats_.bodies(context.owner())) {
    json::value chat = json::parse(body);
    if ((model.empty() || chat.at("model") == json::value(model)) && has_labels(chat))
      items.push_back(std::move(chat));
  }
  return page_of(std::move(items), page);
}

Result<std::string> Frontend::stored_messages(const std::string& id, const ItemPage& page,
                                              const RequestContext& context) const {
  OAR_ASSIGN(StoredResponse kept, chats_.find(context.owner(), id));
  return page_of(std::move(kept.input), page);
}

Result<std::string> Frontend::label_chat(const std::string& id, const json::object& body,
                                         const RequestContext& context) const {
  return label(chats_, id, body, context);
}

Result<std::string> Frontend::label(ResponseStore& store, const std::string& id, const json::object& body,
                                    const RequestContext& context) const {
  Fields f(body);
  json::object metadata;
  f.require("metadata", "send the labels that it is to have");
  read_metadata(f, metadata);
  f.refuse_rest();
  if (!f.ok()) return f.status();
  std::string out;
  OAR_RETURN_IF_ERROR(store.amend(
      context.owner(), id, [&](StoredResponse& kept) { out = kept.body = labelled(kept.body, metadata); }));
  return out;
}

Result<std::string> Frontend::erase_chat(const std::string& id, const RequestContext& context) const {
  OAR_RETURN_IF_ERROR(chats_.erase(context.owner(), id));
  return json::serialize(
      json::object{{"id", json::string(id)}, {"object", "chat.completion.deleted"}, {"deleted", true}});
}

}  // namespace oar::api
