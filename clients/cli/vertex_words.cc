#include "clients/cli/vertex_words.h"

#include <cstdlib>

#include "engine/base/format.h"

namespace oar::cli {
namespace {

std::string word(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

Status check_path(const char* name, const std::string& path) {
  if (path.front() == '/' && path.size() > 1 && path.find_first_of("{}?# ") == path.npos) return ok_status();
  return invalid_argument(cat(name, " is ", path, "; it is a path such as /predict"), name);
}

}  // namespace

Status read_vertex_words(bool address_given, ServerOptions& options) {
  if (word("AIP_MODE", "") != "PREDICTION") return ok_status();
  options.predict_path = word("AIP_PREDICT_ROUTE", "/predict");
  options.health_path = word("AIP_HEALTH_ROUTE", "/health");
  OAR_RETURN_IF_ERROR(check_path("AIP_PREDICT_ROUTE", options.predict_path));
  OAR_RETURN_IF_ERROR(check_path("AIP_HEALTH_ROUTE", options.health_path));
  if (!address_given) options.http_address = cat("0.0.0.0:", word("AIP_HTTP_PORT", "8080"));
  return ok_status();
}

}  // namespace oar::cli
