// The words by which Google's Vertex AI tells a container where it asks: AIP_MODE, AIP_HTTP_PORT,
// AIP_PREDICT_ROUTE, AIP_HEALTH_ROUTE.
#pragma once

#include "server/server.h"

namespace oar::cli {

// Where AIP_MODE is PREDICTION: its paths, and its port on all addresses unless one was given. Otherwise
// nothing.
Status read_vertex_words(bool address_given, ServerOptions& options);

}  // namespace oar::cli
