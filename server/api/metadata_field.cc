#include "server/api/metadata_field.h"

#include "engine/base/format.h"

namespace oar::api {

void read_metadata(Fields& f, json::object& out) {
  constexpr size_t kMost = 16, kNameBytes = 64, kTextBytes = 512;  // OpenAI's
  const json::object* metadata = f.object("metadata");
  if (metadata == nullptr) return;
  if (metadata->size() > kMost)
    return f.fail("metadata",
                  cat("metadata has ", metadata->size(), " entries; at most ", kMost, " are accepted"));
  for (const auto& member : *metadata) {
    const json::string* text = member.value().if_string();
    if (member.key().size() > kNameBytes || text == nullptr || text->size() > kTextBytes)
      return f.fail("metadata", cat("metadata: names have at most ", kNameBytes,
                                    " bytes, values are strings of at most ", kTextBytes));
  }
  out = *metadata;
}

}  // namespace oar::api
