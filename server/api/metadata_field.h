// OpenAI's `metadata`: names and texts that label what is stored.
#pragma once

#include "server/api/fields.h"

namespace oar::api {

void read_metadata(Fields& fields, json::object& out);

}  // namespace oar::api
