// Images with classes, what a network over images is trained on. Two forms:
//
//   a folder of folders   a class each, whose name is the folder's, with .jpg, .jpeg and .png files in it
//   IDX                   MNIST's form (http://yann.lecun.com/exdb/mnist): a file of grey images, magic
//                         0x00000803, and beside it one of their classes, magic 0x00000801, under the same
//                         name with "labels-idx1" for "images-idx3". The classes are "0", "1", ...
//
// Files are hostile: every fault is an error that names the file and the remedy.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/tensor/mapped_file.h"
#include "engine/vision/image.h"

namespace oar::train {

struct ImageOptions {
  // Decodes a file. Who meets files of users has the decoders; none: folders are refused.
  std::function<Result<vision::Image>(const std::string& path)> read = nullptr;
  int64_t batch = 0;  // images of a micro-batch; 0: 32, or what the network is fixed to
  int size = 0;       // side of the input where the network leaves it open; 0: what it was made for
  std::vector<float> mean, std;  // by channel, of pixels in 0..1; empty: ImageNet's of three, 0 and 1 of one
  bool bgr = false;              // channel 0 is blue
  bool stretch = false;          // whole images, not their middle
};

// What a network is given: (channels, height, width), each value (pixel / 255 - mean) / std.
struct ImageForm {
  int channels = 3, height = 0, width = 0;
  std::vector<float> mean, std;
  bool bgr = false, stretch = false;
  int64_t numel() const { return int64_t{channels} * height * width; }
};

class ImageSet {
 public:
  // Every source in its form; `option` names it in messages. Classes of several sources must agree. Folders
  // are listed, their files are decoded when they are read.
  static Result<ImageSet> open(const std::vector<std::string>& sources, const char* option,
                               const ImageOptions& options);

  size_t size() const { return images_.size(); }
  // By name: of folders sorted, of IDX up to the largest there is.
  const std::vector<std::string>& classes() const { return classes_; }
  int32_t label(size_t image) const { return images_[image].label; }
  std::string name(size_t image) const;  // "t10k-images-idx3-ubyte[17]", "cats/a.png"
  std::string names(const std::vector<size_t>& images) const;
  // The image as the network is given it, into out[form.numel()]. Any thread.
  Status read(size_t image, const ImageForm& form, float* out) const;
  // These images alone, under the same classes.
  ImageSet subset(const std::vector<size_t>& images) const;
  // Hex, of classes, names, sizes of files and, of IDX, bytes.
  std::string hash() const;

 private:
  struct Source {
    std::string path;
    std::shared_ptr<const MappedFile> file;  // of IDX
    int height = 0, width = 0;
  };
  struct Image {
    uint32_t source = 0;
    int32_t label = 0;
    uint32_t index = 0;  // IDX
    std::string path;    // within a folder
  };
  Status add_folder(const std::string& path, const char* option);
  Status add_idx(const std::string& path, const char* option);

  std::vector<Source> sources_;
  std::vector<Image> images_;
  std::vector<std::string> classes_;
  ImageOptions options_;
};

}  // namespace oar::train
