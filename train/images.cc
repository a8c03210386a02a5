#include "train/images.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/format.h"
#include "engine/runtime/content_hash.h"

namespace oar::train {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kImages = 0x00000803, kLabels = 0x00000801;

uint32_t big_endian(const std::byte* p) {
  uint32_t v = 0;
  for (int k = 0; k < 4; ++k) v = v << 8 | static_cast<uint32_t>(p[k]);
  return v;
}

bool is_picture(const fs::path& path) {
  std::string end = path.extension().string();
  std::transform(end.begin(), end.end(), end.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return end == ".jpg" || end == ".jpeg" || end == ".png";
}

// The file with the classes of `path`'s images.
std::string labels_beside(const std::string& path) {
  const fs::path p(path);
  std::string name = p.filename().string();
  const size_t images = name.find("images"), dims = name.find("idx3");
  if (images == std::string::npos || dims == std::string::npos) return "";
  name.replace(dims, 4, "idx1");
  name.replace(images, 6, "labels");
  return (p.parent_path() / name).string();
}

Result<std::shared_ptr<const MappedFile>> open_idx(const std::string& path, uint32_t magic, size_t dims) {
  if (path.ends_with(".gz"))
    return invalid_argument(cat(path, " is compressed; unpack it first (gunzip -k ", path, ")"));
  OAR_ASSIGN(auto file, MappedFile::open(path));
  const uint64_t head = 4 + 4 * dims;
  if (file->size() < head || big_endian(file->data()) != magic)
    return data_loss(cat(path, " is no IDX file of ", dims == 3 ? "images" : "classes",
                         ": expected a folder of class folders, or the magic number 0x0000080", dims));
  uint64_t bytes = 1;
  for (size_t k = 0; k < dims; ++k) {
    const uint64_t n = big_endian(file->data() + 4 + 4 * k);
    if (n == 0 || n > file->size() / bytes)
      return data_loss(
          cat(path, ": extent ", k, " is ", n, ", which the file's ", file->size(), " bytes cannot hold"));
    bytes *= n;
  }
  if (file->size() != head + bytes)
    return data_loss(cat(path, " has ", file->size(), " bytes where its head says ", head + bytes));
  return file;
}

}  // namespace

Result<ImageSet> ImageSet::open(const std::vector<std::string>& sources, const char* option,
                                const ImageOptions& options) {
  ImageSet out;
  out.options_ = options;
  for (const std::string& path : sources) {
    std::error_code ec;
    OAR_RETURN_IF_ERROR(fs::is_directory(path, ec) ? out.add_folder(path, option)
                                                   : out.add_idx(path, option));
  }
  return out;
}

Status ImageSet::add_folder(const std::string& path, const char* option) {
  if (!options_.read) return unimplemented(cat(option, " ", path, ": this program decodes no image files"));
  std::vector<std::string> classes;
  std::vector<std::vector<std::string>> files;
  std::error_code ec;
  for (fs::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec))
    if (it->is_directory()) classes.push_back(it->path().filename().string());
  std::sort(classes.begin(), classes.end());
  for (size_t c = 0; c < classes.size() && !ec; ++c) {
    files.emplace_back();
    for (fs::recursive_directory_iterator it(fs::path(path) / classes[c], ec), end; !ec && it != end;
         it.increment(ec))
      if (it->is_regular_file() && is_picture(it->path()))
        files.back().push_back(fs::relative(it->path(), path).string());
    std::sort(files.back().begin(), files.back().end());
    if (files.back().empty() && !ec)
      return invalid_argument(
          cat(option, " ", path, ": folder '", classes[c], "' has no .jpg, .jpeg or .png file"));
  }
  if (ec) return unavailable(cat(option, " ", path, " cannot be read: ", ec.message()));
  if (classes.empty())
    return invalid_argument(
        cat(option, " ", path, " has no folders; expected one a class, with images in it"));
  if (!classes_.empty() && classes_ != classes)
    return invalid_argument(cat(option, " ", path, " has other classes than ", sources_[0].path));
  classes_ = classes;
  for (size_t c = 0; c < classes.size(); ++c)
    for (std::string& file : files[c])
      images_.push_back(
          {static_cast<uint32_t>(sources_.size()), static_cast<int32_t>(c), 0, std::move(file)});
  sources_.push_back({path, nullptr, 0, 0});
  return ok_status();
}

Status ImageSet::add_idx(const std::string& path, const char* option) {
  OAR_ASSIGN(const auto images, open_idx(path, kImages, 3));
  const std::string beside = labels_beside(path);
  if (beside.empty())
    return invalid_argument(cat(option, " ", path,
                                ": its name has no 'images' and 'idx3', by which the file "
                                "with its classes (labels, idx1) would be found"));
  OAR_ASSIGN(const auto labels, open_idx(beside, kLabels, 1));
  const uint32_t n = big_endian(images->data() + 4), of_labels = big_endian(labels->data() + 4);
  if (n != of_labels)
    return data_loss(cat(path, " has ", n, " images, ", beside, " ", of_labels, " classes"));
  const uint32_t height = big_endian(images->data() + 8), width = big_endian(images->data() + 12);
  if (height > vision::kMaxSide || width > vision::kMaxSide)
    return data_loss(cat(path, ": images of ", width, " x ", height, " are too large"));
  if (!sources_.empty() && !sources_[0].file)
    return invalid_argument(cat(option, " ", path, " has other classes than ", sources_[0].path));
  for (uint32_t k = 0; k < n; ++k) {
    const auto label = static_cast<int32_t>(labels->data()[8 + k]);
    images_.push_back({static_cast<uint32_t>(sources_.size()), label, k, {}});
    while (static_cast<int32_t>(classes_.size()) <= label) classes_.push_back(cat(classes_.size()));
  }
  sources_.push_back({path, images, static_cast<int>(height), static_cast<int>(width)});
  return ok_status();
}

std::string ImageSet::name(size_t image) const {
  const Image& i = images_[image];
  const Source& s = sources_[i.source];
  return s.file ? cat(fs::path(s.path).filename().string(), "[", i.index, "]") : i.path;
}

std::string ImageSet::names(const std::vector<size_t>& images) const {
  std::string out;
  for (const size_t k : images) out += cat(out.empty() ? "" : ", ", name(k));
  return out;
}

Status ImageSet::read(size_t image, const ImageForm& form, float* out) const {
  const Image& i = images_[image];
  const Source& s = sources_[i.source];
  vision::Image picture;
  if (s.file) {
    OAR_ASSIGN(picture, vision::make_image(s.width, s.height));
    const size_t bytes = static_cast<size_t>(s.width) * static_cast<size_t>(s.height);
    const std::byte* const from = s.file->data() + 16 + i.index * bytes;
    for (size_t k = 0; k < bytes; ++k)
      for (size_t c = 0; c < 3; ++c) picture.rgb[3 * k + c] = static_cast<uint8_t>(from[k]);
  } else {
    OAR_ASSIGN(picture, options_.read((fs::path(s.path) / i.path).string()));
  }
  OAR_ASSIGN(picture,
             vision::fitted(picture, form.width, form.height, form.stretch || form.width != form.height));
  if (form.channels == 3) {
    vision::Normalization how;
    std::copy_n(form.mean.begin(), 3, how.mean.begin());
    std::copy_n(form.std.begin(), 3, how.std.begin());
    how.bgr = form.bgr;
    vision::normalize(picture, how, form.width, out);
    return ok_status();
  }
  // Grey as ITU-R BT.601 has it, in whole numbers, so that grey stays what it is.
  for (size_t k = 0; k < static_cast<size_t>(form.numel()); ++k) {
    const uint8_t* const p = &picture.rgb[3 * k];
    const int grey = (299 * p[0] + 587 * p[1] + 114 * p[2] + 500) / 1000;
    out[k] = (static_cast<float>(grey) / 255 - form.mean[0]) / form.std[0];
  }
  return ok_status();
}

ImageSet ImageSet::subset(const std::vector<size_t>& images) const {
  ImageSet out = *this;
  out.images_.clear();
  for (const size_t k : images) out.images_.push_back(images_[k]);
  return out;
}

std::string ImageSet::hash() const {
  ContentHash hash;
  for (const std::string& c : classes_) hash.add(cat(c, "\n"));
  for (size_t k = 0; k < images_.size(); ++k) {
    const Image& i = images_[k];
    std::error_code ec;  // of files their sizes: reading them all would take as long as an epoch
    const auto bytes = i.path.empty() ? 0 : fs::file_size(fs::path(sources_[i.source].path) / i.path, ec);
    hash.add(cat(name(k), " ", i.label, " ", bytes, "\n"));
  }
  for (const Source& s : sources_)
    if (s.file) hash.add(s.file->data(), s.file->size());
  return hash.hex();
}

}  // namespace oar::train
