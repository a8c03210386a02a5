// A route that answers with a generation, whatever the protocol: parsing on a worker thread, then events to
// the connection as an AnswerWriter words them.
#pragma once

#include "server/api/generation.h"
#include "server/http/routes.h"

namespace oar::http {

using Prepare = Result<api::Prepared> (api::Frontend::*)(const json::object& body,
                                                         const api::RequestContext& context) const;
// Everything from the body's bytes to the engine's queue: for a worker thread. `path` is the request's, for
// the words of errors. What it returns other than OK is the answer.
Status start_generation(const Services& services, Prepare prepare, api::RequestContext context,
                        const std::string& path, const std::string& body,
                        const std::shared_ptr<ResponseWriter>& writer);
Status start_generation(const Services& services, Prepare prepare, api::RequestContext context,
                        const std::string& path, const json::object& body,
                        const std::shared_ptr<ResponseWriter>& writer);
// `services` must outlive the handlers.
Handler generation_route(const Services& services, Prepare prepare);

// The same of /v1/embeddings.
Status start_embedding(const Services& services, api::RequestContext context, const std::string& path,
                       const std::string& body, const std::shared_ptr<ResponseWriter>& writer);

// Set when the client leaves before there is anything to cancel.
std::shared_ptr<const std::atomic<bool>> watch_leaving(ResponseWriter& writer);

// Whether a client takes more of its stream. For a Generation, which is to be woken by on_drain().
api::Generation::Ready reads_along(bool streaming, const std::shared_ptr<ResponseWriter>& writer);

// One that answers a JSON object with another, on a worker thread.
using JsonMethod = Result<std::string> (api::Frontend::*)(const json::object& body) const;
Handler json_route(const Services& services, JsonMethod method);

}  // namespace oar::http
