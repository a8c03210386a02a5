// Encoders: oar_encoder_*(), oar_embed(), oar_score(). Texts of about one length run together, as a server
// would do with texts of many clients, but in the caller's thread: an encoder has no queue and no thread of
// its own.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>

#include "engine/capi/call.h"
#include "engine/capi/handles.h"
#include "engine/capi/outputs.h"
#include "engine/capi/predictor_options.h"
#include "engine/runtime/text_encoder.h"

namespace oar::capi {

class EncoderObject {
 public:
  explicit EncoderObject(LoadedEncoder l) : loaded(std::move(l)) {}
  const LoadedEncoder loaded;
};

namespace {

// Tokens that run at once, padding included: enough to keep a matrix multiplication busy, little enough that
// its activations stay in the megabytes.
constexpr int64_t kBatchTokens = 2048;

using Vectors = std::vector<std::vector<float>>;
using ReadRow = std::function<Result<std::vector<float>>(const std::vector<Datum>& outputs, size_t tokens)>;

Result<std::vector<EncoderTokens>> tokenize_all(
    const char* const* texts, size_t count, const char* name,
    const std::function<Result<EncoderTokens>(std::string_view)>& tokenize) {
  if (texts == nullptr) return null_argument(name);
  if (count == 0 || count > INT32_MAX)
    return invalid_argument(cat("count is ", count, "; give 1 to ", INT32_MAX), "count");
  std::vector<EncoderTokens> rows;
  rows.reserve(
      std::min<size_t>(count, 1024));  // what the caller says is not believed before it has been read
  for (size_t i = 0; i < count; ++i) {
    if (texts[i] == nullptr) return invalid_argument(cat(name, "[", i, "] is NULL; pass a text"), name);
    if (texts[i][0] == '\0') return invalid_argument(cat(name, "[", i, "] is empty; pass a text"), name);
    auto row = tokenize(texts[i]);
    if (!row.ok()) return Status(row.status().code(), cat(name, "[", i, "]: ", row.status().message()), name);
    rows.push_back(std::move(*row));
  }
  return rows;
}

// Runs these rows together and reads each.
Status run_rows(const LoadedEncoder& e, const std::vector<EncoderTokens>& rows, std::span<const size_t> group,
                const ReadRow& read, Vectors& results) {
  std::vector<std::vector<Datum>> requests;
  for (const size_t i : group) {
    OAR_ASSIGN(auto inputs, e.encoder->inputs(rows[i]));
    requests.push_back(std::move(inputs));
  }
  OAR_ASSIGN(const auto answers, e.runner->run_together(requests, nullptr));
  for (size_t k = 0; k < group.size(); ++k) {
    OAR_ASSIGN(results[group[k]], read(answers[k], rows[group[k]].ids.size()));
  }
  return ok_status();
}

Result<Vectors> run_all(const LoadedEncoder& e, const std::vector<EncoderTokens>& rows, const ReadRow& read) {
  const auto padded = [&](size_t i) {
    return e.encoder->padded_length(static_cast<int64_t>(rows[i].ids.size()));
  };
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return padded(a) < padded(b); });
  Vectors results(rows.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    int64_t tokens = padded(order[begin]);
    while (end < order.size() && tokens + padded(order[end]) <= kBatchTokens &&
           (e.encoder->info().packs || padded(order[end]) == padded(order[begin])))
      tokens += padded(order[end++]);
    const std::span<const size_t> group(order.data() + begin, end - begin);
    // A graph with a fixed batch refuses company; its rows then run alone.
    if (const Status together = run_rows(e, rows, group, read, results); !together.ok()) {
      if (group.size() == 1) return together;
      for (const size_t& i : group) OAR_RETURN_IF_ERROR(run_rows(e, rows, {&i, 1}, read, results));
    }
    begin = end;
  }
  return results;
}

// [count, width] or, of numbers, [count]; and the rows' lengths.
Status hand_out(const Vectors& vectors, const std::vector<EncoderTokens>& rows, bool numbers,
                OutputsObject& out) {
  const size_t width = vectors[0].size();
  const auto count = static_cast<int64_t>(vectors.size());
  const Shape shape = numbers ? Shape({count}) : Shape({count, static_cast<int64_t>(width)});
  OAR_ASSIGN(Tensor values, Tensor::allocate(shape, Format::of(DType::kF32)));
  OAR_ASSIGN(Tensor lengths, Tensor::allocate(Shape({count}), Format::of(DType::kI64)));
  auto* to = static_cast<float*>(values.mutable_data());
  auto* length = static_cast<int64_t*>(lengths.mutable_data());
  for (size_t i = 0; i < vectors.size(); ++i) {
    if (vectors[i].size() != width)
      return internal_error(cat("text ", i, " has ", vectors[i].size(), " numbers, text 0 has ", width));
    for (const float v : vectors[i])
      if (!std::isfinite(v)) return internal_error(cat("the answer for text ", i, " is not finite"));
    to = std::copy(vectors[i].begin(), vectors[i].end(), to);
    length[i] = static_cast<int64_t>(rows[i].ids.size());
  }
  out.tensors.push_back(std::move(values));
  out.tensors.push_back(std::move(lengths));
  return ok_status();
}

void shorten(std::vector<float>& v, int64_t dimensions) {
  v.resize(static_cast<size_t>(dimensions));
  double square = 0;
  for (const float x : v) square += static_cast<double>(x) * static_cast<double>(x);
  const double norm = std::max(std::sqrt(square), 1e-12);
  for (float& x : v) x = static_cast<float>(static_cast<double>(x) / norm);
}

Result<VectorOptions> read_vector_options(const oar_embed_options& o) {
  static constexpr Pooling kModes[] = {Pooling::kMean, Pooling::kFirst,    Pooling::kLast,
                                       Pooling::kMax,  Pooling::kMeanSqrt, Pooling::kWeightedMean};
  VectorOptions out;
  if (o.pooling < OAR_POOLING_MODEL || o.pooling > OAR_POOLING_WEIGHTED_MEAN)
    return invalid_argument(cat("pooling is ", o.pooling, ", which is no oar_pooling"), "pooling");
  if (o.pooling != OAR_POOLING_MODEL) out.pooling = kModes[o.pooling - 1];
  if (o.normalize > 1)
    return invalid_argument(cat("normalize is ", o.normalize, "; give 0, 1 or -1 (as the model's files say)"),
                            "normalize");
  if (o.normalize >= 0) out.normalize = o.normalize == 1;
  if (o.dimensions < 0)
    return invalid_argument(cat("dimensions is ", o.dimensions, "; give a number >= 0 (0: all)"),
                            "dimensions");
  return out;
}

Status embed(const LoadedEncoder& e, const char* const* texts, size_t count, const oar_embed_options& o,
             OutputsObject& out) {
  OAR_ASSIGN(const VectorOptions options, read_vector_options(o));
  if (!e.encoder->embeds())
    return {StatusCode::kFailedPrecondition, "the model classifies and has no vectors; call oar_score()"};
  const int64_t cut = o.max_tokens < 0 ? INT64_MAX : o.max_tokens;
  OAR_ASSIGN(const std::vector<EncoderTokens> rows,
             tokenize_all(texts, count, "texts", [&](std::string_view text) -> Result<EncoderTokens> {
               OAR_ASSIGN(std::vector<int32_t> ids, e.encoder->tokenizer().encode(text));
               const int64_t most = e.encoder->info().max_tokens;
               if (cut == 0 && static_cast<int64_t>(ids.size()) > most)
                 return Status(StatusCode::kOutOfRange,
                               cat("the text has ", ids.size(), " tokens, the model takes at most ", most,
                                   "; shorten it, or set max_tokens of the options"));
               return e.encoder->accept(std::move(ids), cut);
             }));
  OAR_ASSIGN(Vectors vectors, run_all(e, rows, [&](const std::vector<Datum>& outputs, size_t tokens) {
               return e.encoder->vector(outputs, tokens, options);
             }));
  if (o.dimensions > 0) {
    if (static_cast<size_t>(o.dimensions) > vectors[0].size())
      return invalid_argument(
          cat("dimensions is ", o.dimensions, " but the model's vectors have ", vectors[0].size()),
          "dimensions");
    if (static_cast<size_t>(o.dimensions) < vectors[0].size())
      for (std::vector<float>& v : vectors) shorten(v, o.dimensions);
  }
  return hand_out(vectors, rows, false, out);
}

Status score(const LoadedEncoder& e, const char* query, const char* const* documents, size_t count,
             OutputsObject& out) {
  if (query == nullptr) return null_argument("query");
  if (query[0] == '\0') return invalid_argument("query is empty; pass a text", "query");
  if (!e.encoder->classifies())
    return {StatusCode::kFailedPrecondition,
            "the model has no classifier; compare vectors of oar_embed() by their dot product"};
  OAR_ASSIGN(const std::vector<EncoderTokens> rows,
             tokenize_all(documents, count, "documents",
                          [&](std::string_view text) { return e.encoder->encode_pair(query, text); }));
  OAR_ASSIGN(const Vectors scores,
             run_all(e, rows, [&](const std::vector<Datum>& outputs, size_t) -> Result<std::vector<float>> {
               OAR_ASSIGN(const float value, e.encoder->score(outputs));
               return std::vector<float>{value};
             }));
  return hand_out(scores, rows, true, out);
}

Status open_encoder(const char* path, const oar_predictor_options& o, oar_encoder* encoder) {
  if (encoder == nullptr) return null_argument("encoder");
  *encoder = 0;
  if (path == nullptr) return null_argument("path");
  if (o.params != nullptr)
    return invalid_argument("params is of a predictor; an encoder's parameters lie in its folder", "params");
  OAR_ASSIGN(const PredictorOptions options, options_of(o));
  OAR_ASSIGN(LoadedEncoder loaded, load_text_encoder(path, options));
  OAR_ASSIGN(*encoder, put(std::make_shared<EncoderObject>(std::move(loaded))));
  return ok_status();
}

}  // namespace
}  // namespace oar::capi

using namespace oar;        // NOLINT: the functions below are C
using namespace oar::capi;  // NOLINT

extern "C" {

oar_status oar_embed_options_init(oar_embed_options* options, size_t size) {
  oar_embed_options defaults = {};
  defaults.normalize = -1;
  return init_struct(defaults, "options", options, size);
}

oar_status oar_encoder_load(const char* path, int32_t threads, oar_encoder* encoder) {
  return call([&]() -> Status {
    oar_predictor_options o = {};
    o.threads = threads;
    return open_encoder(path, o, encoder);
  });
}

oar_status oar_encoder_open(const char* path, const oar_predictor_options* options, oar_encoder* encoder) {
  return call([&]() -> Status {
    oar_predictor_options o = {};
    if (options != nullptr) OAR_RETURN_IF_ERROR(read_struct(options, "predictor_options", o));
    return open_encoder(path, o, encoder);
  });
}

oar_status oar_encoder_close(oar_encoder encoder) {
  return call([&]() -> Status { return take<EncoderObject>(encoder).status(); });
}

oar_status oar_encoder_get_info(oar_encoder encoder, oar_encoder_info* info, size_t size) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<EncoderObject>(encoder));
    const TextEncoder& e = *object->loaded.encoder;
    oar_encoder_info out = {};
    out.max_tokens = e.info().max_tokens;
    out.dimensions = e.info().dimensions;
    out.vocab_size = static_cast<int32_t>(e.tokenizer().vocab_size());
    out.embeds = e.embeds() ? 1 : 0;
    out.scores = e.classifies() && e.info().labels <= 2 ? 1 : 0;
    out.normalizes = e.info().normalize ? 1 : 0;
    return write_struct(out, "info", info, size);
  });
}

oar_status oar_embed(oar_encoder encoder, const char* const* texts, size_t count,
                     const oar_embed_options* options, oar_outputs* vectors) {
  return call([&]() -> Status {
    if (vectors == nullptr) return null_argument("vectors");
    *vectors = 0;
    OAR_ASSIGN(const auto object, find<EncoderObject>(encoder));
    oar_embed_options o;
    oar_embed_options_init(&o, sizeof o);
    if (options != nullptr) OAR_RETURN_IF_ERROR(read_struct(options, "embed_options", o));
    if (o.reserved != 0) {
      return invalid_argument(cat("reserved is ", o.reserved, "; fill it with oar_embed_options_init()"),
                              "reserved");
    }
    auto results = std::make_shared<OutputsObject>();
    OAR_RETURN_IF_ERROR(embed(object->loaded, texts, count, o, *results));
    OAR_ASSIGN(*vectors, put(std::move(results)));
    return ok_status();
  });
}

oar_status oar_score(oar_encoder encoder, const char* query, const char* const* documents, size_t count,
                     oar_outputs* scores) {
  return call([&]() -> Status {
    if (scores == nullptr) return null_argument("scores");
    *scores = 0;
    OAR_ASSIGN(const auto object, find<EncoderObject>(encoder));
    auto results = std::make_shared<OutputsObject>();
    OAR_RETURN_IF_ERROR(score(object->loaded, query, documents, count, *results));
    OAR_ASSIGN(*scores, put(std::move(results)));
    return ok_status();
  });
}

}  // extern "C"
