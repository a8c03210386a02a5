// Any bytes as a tensor request over REST, as an embeddings or rerank request, or as a config.pbtxt: a Status
// that says something, or what the parser promises. The first byte picks which; for tensors the next two say
// how much is JSON.
#include <cstdint>
#include <cstdlib>

#include "server/api/embeddings.h"
#include "server/api/openai_request.h"
#include "server/api/tensor_json.h"
#include "server/api/tensor_wire.h"
#include "server/repository/text_config.h"
#include "tests/fuzz/target.h"

namespace {

using namespace oar;  // NOLINT

void require(bool ok) {
  if (!ok) std::abort();
}

api::TensorModelConfig config() {
  api::TensorModelConfig c;
  c.name = "m";
  c.max_batch = 8;
  api::TensorSpec x;
  x.name = "x";
  x.dims = {-1, 3};
  x.symbols = {"batch", ""};
  api::TensorSpec s = x;
  s.name = "s";
  s.dtype = DType::kString;
  s.dims = {-1, -1};
  s.symbols = {"batch", "n"};
  s.optional = true;
  c.inputs = {x, s};
  c.outputs = {x};
  return c;
}

void tensors(std::string_view data) {
  if (data.size() < 2) return;
  const size_t json = static_cast<uint8_t>(data[0]) | static_cast<size_t>(static_cast<uint8_t>(data[1])) << 8;
  const std::string body(data.substr(2));
  static const api::TensorModelConfig c = config();
  auto parsed =
      api::parse_infer_body(c, body, json == 0xFFFF ? std::nullopt : std::optional<size_t>(json), nullptr);
  if (!parsed.ok()) return require(!parsed.status().message().empty());
  auto job = api::make_job(c, std::move(parsed->inputs));
  if (!job.ok()) return require(!job.status().message().empty());
  require(job->inputs.size() == 2 && job->rows >= 1 && job->rows <= 8);
  const Tensor& x = job->inputs[0].tensor;
  require(x.shape().rank() == 2 && x.shape()[0] == job->rows && x.shape()[1] == 3);
  double sum = 0;  // every byte is there
  for (const float v : x.values<float>()) sum += v == 0 ? 1 : 0;
  require(sum >= 0);
  (void)api::write_infer_body(c, *parsed, {job->inputs[0]}, {0});
}

}  // namespace

OAR_FUZZ_TARGET(tensor_request) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: tensors(rest); break;
    case 1: {
      const auto parsed = parse_text_config(rest, "config");
      if (!parsed.ok()) require(!parsed.status().message().empty());
      break;
    }
    default: {
      const auto body = api::parse_body(rest);
      if (!body.ok()) break;
      if (data[0] % 4 == 2) {
        const auto r = api::parse_embedding_request(*body);
        require(r.ok() ? !r->inputs.empty() : !r.status().message().empty());
      } else {
        const auto r = api::parse_rerank_request(*body);
        require(r.ok() ? !r->query.empty() && !r->documents.empty() : !r.status().message().empty());
      }
    }
  }
  return 0;
}
