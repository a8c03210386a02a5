#include "clients/cli/finetune_images.h"

#include "clients/cli/image_file.h"
#include "clients/cli/ranges.h"
#include "engine/base/format.h"

namespace oar::cli {
namespace {

struct Refused {
  const char *flag, *why;
};
// Of texts, and why a network over images does not take them.
constexpr Refused kTextFlags[] = {
    {"--lora", "a network over images is trained whole; give --full"},
    {"--weights", "a network over images is trained as it is stored"},
    {"--length", "images have no tokens; --size is a side of theirs"},
    {"--too-long", "images have no tokens"},
    {"--cuts", "images are not cut"},
    {"--dropout", "a network over images is trained without dropout"},
    {"--sample-tokens", "an image does not go on"},
    {"--tokens", "images have no tokens; --batch is a micro-batch's number of images"},
    {"--recompute", "a network over images is not computed again; a smaller --batch takes less"},
    {"--precision", "a network over images is trained in f32"},
    {"--white", "a network over images is trained in f32"},
    {"--black", "a network over images is trained in f32"},
    {"--labels", "classes are the names of folders, or IDX's numbers"},
};
constexpr const char* kImageFlags[] = {"--batch", "--size", "--mean", "--std", "--bgr", "--stretch"};

}  // namespace

std::vector<CLI::Option*> add_image_sizes(CLI::App& c, train::ImageOptions& o) {
  auto* batch =
      c.add_option("--batch", o.batch, "a network's images of a micro-batch; 0: 32, or what the file fixes")
          ->check(in_range(0, 1 << 20))
          ->capture_default_str();
  auto* size = c.add_option("--size", o.size, "side of the images where the network leaves it open")
                   ->check(in_range(1, 4096));
  return {batch, size};
}

void add_image_options(CLI::App& c, train::ImageOptions& o) {
  o.read = read_image;
  c.add_option("--mean", o.mean,
               "by channel, of pixels in 0..1; three channels: ImageNet's when left out, one: 0")
      ->expected(1, 3);
  c.add_option("--std", o.std, "by channel; three: ImageNet's when left out, one: 1")
      ->expected(1, 3)
      ->check(above_zero());
  c.add_flag("--bgr", o.bgr, "channel 0 of the images is blue");
  c.add_flag("--stretch", o.stretch, "whole images, not their middle");
}

Status check_image_flags(const CLI::App& command, bool image) {
  const auto wrong = [](std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message), "command line");
  };
  const auto given = [&](const char* flag) {
    const CLI::Option* const option = command.get_option_no_throw(flag);
    return option != nullptr && option->count() > 0;
  };
  if (image) {
    for (const Refused& r : kTextFlags)
      if (given(r.flag)) return wrong(cat(r.flag, ": ", r.why));
  } else {
    for (const char* flag : kImageFlags)
      if (given(flag)) return wrong(cat(flag, " is for networks over images (.onnx)"));
  }
  return ok_status();
}

}  // namespace oar::cli
