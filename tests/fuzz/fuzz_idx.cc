// Any bytes as MNIST's two files: two bytes say how many of the rest are the images', what follows is their
// classes'. An error that names a file, or images that can be read, each of a class that there is.
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "tests/fuzz/target.h"
#include "tests/support/test_data.h"
#include "train/images.h"

using namespace oar;
using namespace oar::train;

namespace {

void write(const std::string& path, const uint8_t* data, size_t size) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<int64_t>(size));
}

}  // namespace

OAR_FUZZ_TARGET(idx) {
  static const std::string images = oar_test::temp_dir() + "/images-idx3",
                           labels = oar_test::temp_dir() + "/labels-idx1";
  if (size < 2 || size > 1 << 16) return 0;
  const size_t of_images = std::min<size_t>(data[0] | data[1] << 8, size - 2);
  write(images, data + 2, of_images);
  write(labels, data + 2 + of_images, size - 2 - of_images);
  const auto set = ImageSet::open({images}, "--data", {});
  if (!set.ok()) {
    const std::string& told = set.status().message();
    oar_test::must(told.find(images) != std::string::npos || told.find(labels) != std::string::npos);
    return 0;
  }
  oar_test::must(set->size() > 0 && set->classes().size() <= 256 && !set->hash().empty());
  const ImageForm grey{1, 5, 7, {0.5f}, {0.25f}}, colours{3, 5, 7, {0.5f, 0.4f, 0.3f}, {0.2f, 0.3f, 0.4f}};
  for (size_t k = 0; k < set->size(); ++k)
    oar_test::must(set->label(k) >= 0 && static_cast<size_t>(set->label(k)) < set->classes().size());
  for (const size_t k : {size_t{0}, set->size() - 1}) {
    for (const ImageForm& form : {grey, colours}) {
      std::vector<float> pixels(static_cast<size_t>(form.numel()), NAN);
      if (!set->read(k, form, pixels.data()).ok()) continue;
      for (const float v : pixels) oar_test::must(std::isfinite(v));
    }
  }
  return 0;
}
