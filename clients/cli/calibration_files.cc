#include "clients/cli/calibration_files.h"

#include <algorithm>
#include <filesystem>

#include "clients/cli/tensor_files.h"
#include "engine/base/format.h"

namespace oar::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEndings[] = {".npy", ".pb", ".bin"};

bool is_value_file(const fs::path& p) {
  const std::string ending = p.extension().string();
  return std::find(std::begin(kEndings), std::end(kEndings), ending) != std::end(kEndings);
}

// Sorted by name. Empty, and `error` set, where the folder cannot be read.
std::vector<fs::path> entries_of(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> out;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) out.push_back(it->path());
  std::sort(out.begin(), out.end());
  return out;
}

// Path, size and time of change: what tells a file from an older one of its name.
std::string identity(const fs::path& p) {
  std::error_code error;
  const auto size = fs::file_size(p, error);
  const auto time = fs::last_write_time(p, error);
  return cat(fs::absolute(p, error).string(), " ", error ? 0 : size, " ",
             error ? 0 : time.time_since_epoch().count(), "\n");
}

std::string input_names(const std::vector<IoSpec>& inputs) {
  std::string names;
  for (const IoSpec& s : inputs) names += cat(names.empty() ? "" : ", ", value_file_name(s.name));
  return names;
}

// One folder per sample: a file for each input.
Result<std::vector<Datum>> read_sample_folder(const fs::path& folder, const std::vector<IoSpec>& inputs) {
  std::error_code error;
  std::vector<fs::path> files = entries_of(folder, error);
  if (error) return unavailable(cat("cannot be read: ", error.message()));
  std::erase_if(files, [](const fs::path& p) { return !is_value_file(p); });
  std::vector<Datum> out;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const std::string name = value_file_name(inputs[k].name), position = cat("input_", k);
    const auto it = std::find_if(files.begin(), files.end(), [&](const fs::path& p) {
      return p.stem() == name || (p.stem() == position && p.extension() == ".pb");
    });
    if (it == files.end())
      return invalid_argument(
          cat("has no file for input ", inputs[k].to_string(), ": ", name, ".npy, .pb or .bin"));
    OAR_ASSIGN(Datum d, read_value(it->string(), inputs[k]));
    out.push_back(std::move(d));
    files.erase(it);
  }
  std::erase_if(files, [](const fs::path& p) { return p.stem().string().starts_with("output_"); });
  if (!files.empty()) {
    return invalid_argument(cat("the model has no input '", files[0].stem().string(), "' for ",
                                files[0].filename().string(), "; its inputs are ", input_names(inputs)));
  }
  return out;
}

Result<std::vector<Datum>> read_sample(const fs::path& path, const std::vector<IoSpec>& inputs) {
  std::error_code error;
  if (fs::is_directory(path, error)) return read_sample_folder(path, inputs);
  if (inputs.size() != 1) {
    return invalid_argument(cat("one file, and the model has ", inputs.size(),
                                " inputs; give a folder per sample with a file for each of ",
                                input_names(inputs)));
  }
  OAR_ASSIGN(Datum d, read_value(path.string(), inputs[0]));
  return std::vector<Datum>{std::move(d)};
}

}  // namespace

void add_precision_option(CLI::App& command, std::string& precision) {
  command
      .add_option(
          "--precision", precision,
          "what convolutions and layers of ordinary models (ONNX, Paddle) of f32 are computed in; f16 "
          "and tf32 with --device, int8 without")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "tf32", "int8"}))
      ->capture_default_str();
}

void add_calibration_options(CLI::App& command, CalibrationOptions& options) {
  command
      .add_option(
          "--calibrate", options.folder,
          "with --precision int8: a folder of sample inputs, from which values get fixed ranges; a .npy, .pb "
          "or .bin file each, or a folder each with NAME.npy for every input")
      ->type_name("DIR");
  command
      .add_option(
          "--calibrate-method", options.method,
          "how ranges follow from samples: their extremes, all but 1 value of 20,000, or the least squared "
          "error")
      ->check(CLI::IsMember({"minmax", "percentile", "mse"}))
      ->capture_default_str();
}

Result<std::shared_ptr<const CalibrationSamples>> calibration_samples(const CalibrationOptions& options) {
  if (options.folder.empty()) return std::shared_ptr<const CalibrationSamples>();
  const auto wrong = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, cat("--calibrate ", options.folder, ": ", why), "calibrate");
  };
  std::error_code error;
  if (!fs::is_directory(options.folder, error)) return wrong("there is no such folder");
  auto out = std::make_shared<CalibrationSamples>();
  OAR_ASSIGN(out->method, parse_range_method(options.method));
  for (const fs::path& p : entries_of(options.folder, error)) {
    std::error_code ignored;
    const bool folder = fs::is_directory(p, ignored);
    if (!folder && !is_value_file(p)) continue;
    out->names.push_back(p.string());
    out->key += identity(p);
    if (!folder) continue;
    for (const fs::path& file : entries_of(p, ignored)) out->key += identity(file);
  }
  if (error) return wrong(cat("cannot be read: ", error.message()));
  if (out->names.empty())
    return wrong(
        "it holds no samples: .npy, .pb or .bin files, or a folder for each with NAME.npy for every input");
  out->read = [names = out->names](size_t k, const std::vector<IoSpec>& inputs) {
    return read_sample(names[k], inputs);
  };
  return std::shared_ptr<const CalibrationSamples>(std::move(out));
}

}  // namespace oar::cli
