#include "server/api/tensor_model.h"

#include <algorithm>
#include <map>

#include "engine/base/format.h"
#include "server/api/tensor_wire.h"

namespace oar::api {
namespace {

std::string expected(const TensorSpec& spec) {
  const Datatype* type = datatype_of(spec.dtype);
  const std::string_view name = type ? type->name : std::string_view(dtype_name(spec.dtype));
  return spec.ranked ? describe_tensor(name, spec.dims) : cat(name, " of any shape");
}

std::string names_of(const std::vector<TensorSpec>& specs) {
  std::string out;
  for (const TensorSpec& s : specs) out += cat(out.empty() ? "" : ", ", in_quotes(s.name));
  return out;
}

class InputCheck {
 public:
  explicit InputCheck(const TensorModelConfig& config) : config_(config) {}

  Status check(const TensorSpec& spec, const Tensor& t) {
    const Shape& s = t.shape();
    const auto wrong = [&](std::string why, const char* param) {
      return invalid_argument(
          cat("input ", in_quotes(spec.name), " is ", describe_tensor(Datum(t)), ", the model ",
              in_quotes(config_.name), " expects ", expected(spec), why.empty() ? "" : "; ", why),
          param);
    };
    if (t.format().dtype() != spec.dtype) return wrong({}, "datatype");
    if (config_.max_batch > 0) {
      if (s.rank() == 0) return wrong("the first axis is the batch", "shape");
      if (s[0] < 1 || s[0] > config_.max_batch)
        return wrong(cat("a batch has 1 to ", config_.max_batch, " rows (max_batch_size)"), "shape");
      if (rows_ != 0 && s[0] != rows_)
        return wrong(cat("its batch of ", s[0], " differs from the ", rows_, " of input ", in_quotes(first_)),
                     "shape");
      if (rows_ == 0) rows_ = s[0], first_ = spec.name;
    }
    if (!spec.ranked) return ok_status();
    if (s.rank() != static_cast<int>(spec.dims.size())) return wrong({}, "shape");
    for (int k = 0; k < s.rank(); ++k) {
      const auto axis = static_cast<size_t>(k);
      if (spec.dims[axis] >= 0) {
        if (spec.dims[axis] != s[k]) return wrong({}, "shape");
        continue;
      }
      if (axis >= spec.symbols.size() || spec.symbols[axis].empty()) continue;
      const auto [it, fresh] = symbols_.emplace(spec.symbols[axis], s[k]);
      if (!fresh && it->second != s[k])
        return wrong(cat("the extent '", spec.symbols[axis], "' is ", it->second, " in another input"),
                     "shape");
    }
    return ok_status();
  }
  int64_t rows() const { return std::max<int64_t>(1, rows_); }

 private:
  const TensorModelConfig& config_;
  int64_t rows_ = 0;
  std::string first_;
  std::map<std::string, int64_t> symbols_;
};

}  // namespace

const TensorSpec* find_spec(const std::vector<TensorSpec>& specs, std::string_view name) {
  for (const TensorSpec& s : specs)
    if (s.name == name) return &s;
  return nullptr;
}

Result<InferJob> make_job(const TensorModelConfig& config, std::vector<NamedTensor> given,
                          std::vector<NamedList> lists) {
  InferJob job;
  InputCheck check(config);
  for (size_t i = 0; i < given.size(); ++i) {
    if (!find_spec(config.inputs, given[i].name)) {
      return invalid_argument(cat("the model ", in_quotes(config.name), " has no input ",
                                  in_quotes(given[i].name), "; its inputs are ", names_of(config.inputs)),
                              "inputs");
    }
    for (size_t j = 0; j < i; ++j) {
      if (given[j].name == given[i].name)
        return invalid_argument(cat("input ", in_quotes(given[i].name), " is given twice"), "inputs");
    }
  }
  for (const TensorSpec& spec : config.inputs) {
    if (spec.list) {
      const auto it =
          std::find_if(lists.begin(), lists.end(), [&](const NamedList& l) { return l.name == spec.name; });
      if (it == lists.end())
        return unimplemented(cat("input ", in_quotes(spec.name), " of the model ", in_quotes(config.name),
                                 " is a list of tensors, which only a step of an ensemble can make; ask the "
                                 "ensemble instead"));
      job.inputs.push_back(std::move(it->list));
      continue;
    }
    const auto it =
        std::find_if(given.begin(), given.end(), [&](const NamedTensor& t) { return t.name == spec.name; });
    if (it == given.end()) {
      if (!spec.optional) {
        return invalid_argument(cat("input ", in_quotes(spec.name), " is missing; the model ",
                                    in_quotes(config.name), " expects ", expected(spec)),
                                "inputs");
      }
      job.inputs.emplace_back();
      continue;
    }
    OAR_RETURN_IF_ERROR(check.check(spec, it->tensor));
    job.inputs.emplace_back(std::move(it->tensor));
  }
  job.rows = check.rows();
  return job;
}

Result<std::vector<size_t>> select_outputs(const TensorModelConfig& config,
                                           const std::vector<std::string>& wanted) {
  std::vector<size_t> out;
  if (wanted.empty()) {
    for (size_t k = 0; k < config.outputs.size(); ++k) out.push_back(k);
    return out;
  }
  for (const std::string& name : wanted) {
    const TensorSpec* spec = find_spec(config.outputs, name);
    if (!spec) {
      return invalid_argument(cat("the model ", in_quotes(config.name), " has no output ", in_quotes(name),
                                  "; its outputs are ", names_of(config.outputs)),
                              "outputs");
    }
    const auto index = static_cast<size_t>(spec - config.outputs.data());
    if (std::find(out.begin(), out.end(), index) != out.end())
      return invalid_argument(cat("output '", name, "' already exists in request; ask for it once"),
                              "outputs");
    out.push_back(index);
  }
  return out;
}

std::optional<Clock::time_point> queue_deadline(const TensorModelConfig& config,
                                                std::optional<Clock::time_point> transport,
                                                uint64_t timeout_us) {
  constexpr uint64_t kLongest = uint64_t{86400} * 1'000'000;  // a day
  uint64_t us = config.allow_timeout_override && timeout_us > 0
                    ? timeout_us
                    : static_cast<uint64_t>(config.default_timeout_us);
  if (us == 0) return transport;
  const auto own = Clock::now() + std::chrono::microseconds(std::min(us, kLongest));
  return transport ? std::min(*transport, own) : own;
}

}  // namespace oar::api
