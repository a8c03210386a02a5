#include "engine/runtime/text_encoder.h"

#include <algorithm>
#include <cmath>

#include "engine/base/format.h"
#include "engine/tensor/element.h"

namespace oar {
namespace {

// A row of f32 or a narrower float as doubles: sums over hundreds of tokens stay exact to f32's last bit.
Result<std::vector<double>> row_of(const Tensor& t, int64_t row, int64_t width) {
  std::vector<double> out(static_cast<size_t>(width));
  const bool known = dispatch_float(t.format().dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = elements<T>(t) + row * width;
    for (int64_t k = 0; k < width; ++k)
      out[static_cast<size_t>(k)] = static_cast<double>(Element<T>::load(from[k]));
  });
  if (!known) return internal_error(cat("the encoder's output is ", t.format().name(), ", no float"));
  return out;
}

std::vector<double> pool_one(Pooling how, const std::vector<std::vector<double>>& rows) {
  if (how == Pooling::kFirst) return rows.front();
  if (how == Pooling::kLast) return rows.back();
  std::vector<double> out(rows[0].size(), how == Pooling::kMax ? -INFINITY : 0.0);
  double weights = 0;
  for (size_t n = 0; n < rows.size(); ++n) {
    const double weight = how == Pooling::kWeightedMean ? static_cast<double>(n + 1) : 1.0;
    weights += weight;
    for (size_t k = 0; k < out.size(); ++k)
      out[k] = how == Pooling::kMax ? std::max(out[k], rows[n][k]) : out[k] + weight * rows[n][k];
  }
  if (how == Pooling::kMax) return out;
  const double divisor = how == Pooling::kMeanSqrt ? std::sqrt(weights) : weights;
  for (double& v : out) v /= divisor;
  return out;
}

}  // namespace

int64_t shared_length(int64_t length, int64_t most) {
  int64_t step = 4;
  while (step * 16 <= length) step *= 2;  // an eighth of the length at most: step <= length / 8
  return std::min(most, (length + step - 1) / step * step);
}

TextEncoder::TextEncoder(TokenizerPtr tokenizer, Info info)
    : tokenizer_(std::move(tokenizer)), info_(std::move(info)) {
  // What stands around a text is what an empty one is made of.
  const auto around = tokenizer_->encode("");
  if (!around.ok() || around->empty()) return;
  if (around->size() == 1) {
    (tokenizer_->adds_eos() ? last_ : first_) = *around;
  } else {
    first_ = {around->front()};
    last_.assign(around->begin() + 1, around->end());
  }
}

Result<EncoderTokens> TextEncoder::encode(std::string_view text, int64_t truncate_to) const {
  OAR_ASSIGN(std::vector<int32_t> ids, tokenizer_->encode(text));
  return accept(std::move(ids), truncate_to);
}

Result<EncoderTokens> TextEncoder::accept(std::vector<int32_t> ids, int64_t truncate_to) const {
  if (ids.empty()) return invalid_argument("the input has no tokens; send at least one", "input");
  for (const int32_t id : ids) {
    if (id < 0 || id >= tokenizer_->vocab_size())
      return invalid_argument(cat("token ", id, " is not in the vocabulary of ", tokenizer_->vocab_size()),
                              "input");
  }
  const int64_t limit = truncate_to > 0 ? std::min(truncate_to, info_.max_tokens) : info_.max_tokens;
  const auto most = static_cast<size_t>(limit);
  EncoderTokens out;
  if (ids.size() > most) {
    if (truncate_to == 0) {
      return Status(StatusCode::kOutOfRange,
                    cat("the input has ", ids.size(), " tokens, the model takes at most ", most,
                        "; shorten it, or send truncate_prompt_tokens"),
                    "input");
    }
    out.left_out = static_cast<int64_t>(ids.size() - most);
    const size_t end = std::min(last_.size(), most);
    ids.erase(ids.begin() + static_cast<int64_t>(most - end), ids.end() - static_cast<int64_t>(end));
  }
  out.types.assign(ids.size(), 0);
  out.ids = std::move(ids);
  return out;
}

Result<EncoderTokens> TextEncoder::surround(std::vector<int32_t> ids, int64_t truncate_to) const {
  ids.insert(ids.begin(), first_.begin(), first_.end());
  ids.insert(ids.end(), last_.begin(), last_.end());
  return accept(std::move(ids), truncate_to);
}

Result<EncoderTokens> TextEncoder::encode_pair(std::string_view query, std::string_view document,
                                               bool cut_query) const {
  Tokenizer::EncodeOptions plain;
  plain.add_special_tokens = false;
  OAR_ASSIGN(std::vector<int32_t> q, tokenizer_->encode(query, plain));
  OAR_ASSIGN(std::vector<int32_t> d, tokenizer_->encode(document, plain));
  const auto most = static_cast<size_t>(info_.max_tokens);
  const size_t around =
      first_.size() + last_.size() * static_cast<size_t>(info_.pair_separators) + last_.size();
  EncoderTokens out;
  if (cut_query && q.size() + around >= most && most >= around + 2) {
    const size_t keep = most - around - std::min(d.size(), (most - around) / 2);
    out.left_out = static_cast<int64_t>(q.size() - std::min(keep, q.size()));
    q.resize(std::min(keep, q.size()));
  } else if (q.size() + around >= most) {
    return Status(StatusCode::kOutOfRange,
                  cat("the query has ", q.size(),
                      " tokens, which leaves no room for a document in the model's ", most, "; shorten it"),
                  "query");
  }
  const size_t room = std::min(d.size(), most - around - q.size());
  out.left_out += static_cast<int64_t>(d.size() - room);
  d.resize(room);
  const auto append = [&](const std::vector<int32_t>& ids, int type) {
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.types.insert(out.types.end(), ids.size(), type);
  };
  append(first_, 0);
  append(q, 0);
  for (int k = 0; k < info_.pair_separators; ++k) append(last_, 0);
  append(d, info_.pair_type);
  append(last_, info_.pair_type);
  return out;
}

int64_t TextEncoder::padded_length(int64_t tokens) const {
  return info_.packs ? tokens : shared_length(tokens, std::max(tokens, info_.max_tokens));
}

Result<std::vector<Datum>> TextEncoder::inputs(const EncoderTokens& row) const {
  const auto padded = static_cast<size_t>(padded_length(static_cast<int64_t>(row.ids.size())));
  std::vector<Datum> out(
      static_cast<size_t>(std::max({info_.ids_input, info_.mask_input, info_.types_input}) + 1));
  const auto fill = [&](int input, auto value_at, int64_t padding) -> Status {
    if (input < 0) return ok_status();
    OAR_ASSIGN(Tensor t, allocate_elements({1, static_cast<int64_t>(padded)}, info_.integer));
    dispatch_integer(info_.integer, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* to = mutable_elements<T>(t);
      for (size_t k = 0; k < padded; ++k) to[k] = static_cast<T>(k < row.ids.size() ? value_at(k) : padding);
    });
    out[static_cast<size_t>(input)] = Datum(std::move(t));
    return ok_status();
  };
  OAR_RETURN_IF_ERROR(fill(
      info_.ids_input, [&](size_t k) { return int64_t{row.ids[k]}; }, info_.pad));
  OAR_RETURN_IF_ERROR(fill(
      info_.mask_input, [](size_t) { return int64_t{1}; }, 0));
  OAR_RETURN_IF_ERROR(fill(
      info_.types_input, [&](size_t k) { return int64_t{row.types[k]}; }, 0));
  return out;
}

Result<std::vector<float>> TextEncoder::pool(const Tensor& hidden, size_t tokens,
                                             std::span<const Pooling> modes) const {
  const Shape& s = hidden.shape();
  if (s.rank() != 3 || s[0] != 1 || s[1] < static_cast<int64_t>(tokens) || s[2] < 1)
    return internal_error(cat("the encoder's hidden states are ", s.to_string(), " for ", tokens, " tokens"));
  std::vector<std::vector<double>> rows;
  for (size_t n = 0; n < tokens; ++n) {
    OAR_ASSIGN(std::vector<double> row, row_of(hidden, static_cast<int64_t>(n), s[2]));
    rows.push_back(std::move(row));
  }
  std::vector<float> out;
  for (const Pooling how : modes) {
    for (const double v : pool_one(how, rows)) out.push_back(static_cast<float>(v));
  }
  return out;
}

Result<std::vector<float>> TextEncoder::vector(const std::vector<Datum>& outputs, size_t tokens,
                                               const VectorOptions& options) const {
  std::vector<float> out;
  const int index = info_.vector_output >= 0 ? info_.vector_output : info_.hidden_output;
  if (index < 0) return unimplemented("the model classifies and has no embeddings");
  const Datum& d = outputs[static_cast<size_t>(index)];
  if (!d.is_tensor()) return internal_error("the encoder's output is no tensor");
  if (info_.vector_output >= 0) {
    if (options.pooling)
      return invalid_argument("the model's graph pools by itself; leave pooling to the model", "pooling");
    if (d.tensor.shape().rank() != 2 || d.tensor.shape()[0] != 1)
      return internal_error(cat("the encoder's embedding is ", d.tensor.shape().to_string()));
    OAR_ASSIGN(const std::vector<double> row, row_of(d.tensor, 0, d.tensor.shape()[1]));
    out.assign(row.begin(), row.end());
  } else {
    const std::span<const Pooling> modes =
        options.pooling ? std::span<const Pooling>(&*options.pooling, 1) : info_.pooling;
    OAR_ASSIGN(out, pool(d.tensor, tokens, modes));
  }
  if (options.normalize.value_or(info_.normalize)) {
    double square = 0;
    for (const float v : out) square += static_cast<double>(v) * static_cast<double>(v);
    const double norm = std::max(std::sqrt(square), 1e-12);
    for (float& v : out) v = static_cast<float>(static_cast<double>(v) / norm);
  }
  return out;
}

Result<std::vector<float>> TextEncoder::token_vectors(const std::vector<Datum>& outputs,
                                                      size_t tokens) const {
  if (info_.hidden_output < 0)
    return unimplemented("the model's graph pools by itself, so its tokens have no vectors");
  const Datum& d = outputs[static_cast<size_t>(info_.hidden_output)];
  const Shape s = d.is_tensor() ? d.tensor.shape() : Shape();
  if (s.rank() != 3 || s[0] != 1 || s[1] < static_cast<int64_t>(tokens))
    return internal_error(cat("the encoder's hidden states are ", d.to_string(), " for ", tokens, " tokens"));
  std::vector<float> out;
  for (size_t n = 0; n < tokens; ++n) {
    OAR_ASSIGN(const std::vector<double> row, row_of(d.tensor, static_cast<int64_t>(n), s[2]));
    for (const double v : row) out.push_back(static_cast<float>(v));
  }
  return out;
}

Result<std::vector<double>> TextEncoder::logits(const std::vector<Datum>& outputs) const {
  if (info_.logits_output < 0) return unimplemented("the model has no head that scores");
  const Datum& d = outputs[static_cast<size_t>(info_.logits_output)];
  const int rank = d.is_tensor() ? d.tensor.shape().rank() : 0;
  if (rank < 1 || rank > 2 || d.tensor.shape()[0] != 1)
    return internal_error(cat("the classifier's output is ", d.to_string()));
  return row_of(d.tensor, 0, rank == 1 ? 1 : d.tensor.shape()[1]);
}

Result<float> TextEncoder::score(const std::vector<Datum>& outputs) const {
  OAR_ASSIGN(const std::vector<double> x, logits(outputs));
  if (x.size() != 1 && x.size() != 2)
    return unimplemented(cat("the model classifies into ", x.size(),
                             " labels; a score needs one or two, /classify takes any"));
  if (x.size() == 2) return static_cast<float>(1 / (1 + std::exp(x[0] - x[1])));
  return static_cast<float>(info_.sigmoid ? 1 / (1 + std::exp(-x[0])) : x[0]);
}

Result<std::vector<float>> TextEncoder::probabilities(const std::vector<Datum>& outputs) const {
  OAR_ASSIGN(std::vector<double> x, logits(outputs));
  double sum = 0;
  const bool apart = x.size() == 1 || info_.labels_apart;
  const double most = apart || x.empty() ? 0 : *std::max_element(x.begin(), x.end());
  for (double& v : x) {
    v = apart ? 1 / (1 + std::exp(-v)) : std::exp(v - most);
    sum += v;
  }
  std::vector<float> out;
  for (const double v : x) out.push_back(static_cast<float>(apart ? v : v / sum));
  return out;
}

std::string TextEncoder::label_name(size_t label) const {
  const bool named = label < info_.label_names.size() && !info_.label_names[label].empty();
  return named ? info_.label_names[label] : cat("LABEL_", label);
}

}  // namespace oar
