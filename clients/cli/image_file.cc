#include "clients/cli/image_file.h"

#include <jpeglib.h>
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "clients/cli/exif.h"
#include "engine/base/format.h"
#include "engine/tensor/mapped_file.h"

namespace oar::cli {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{512} << 20;

// libjpeg reports through longjmp; nothing with a destructor may live between setjmp and the jump, so
// decode() works on what its caller owns.
struct JpegError {
  jpeg_error_mgr manager;
  jmp_buf back;
  char message[JMSG_LENGTH_MAX];
};
void jpeg_fail(j_common_ptr info) {
  auto* error = reinterpret_cast<JpegError*>(info->err);
  (*info->err->format_message)(info, error->message);
  longjmp(error->back, 1);
}
// Warnings are damage too: a truncated file would otherwise become a grey image.
void jpeg_message(j_common_ptr info, int level) {
  if (level < 0) jpeg_fail(info);
}
void jpeg_silent(j_common_ptr) {}

enum class JpegResult { kDone, kDamaged, kTooLarge };

JpegResult decode_jpeg(std::string_view bytes, JpegError& error, vision::Image& image,
                       std::vector<uint8_t>& row) {
  jpeg_decompress_struct info;
  info.err = jpeg_std_error(&error.manager);
  error.manager.error_exit = jpeg_fail;
  error.manager.emit_message = jpeg_message;
  error.manager.output_message = jpeg_silent;
  jpeg_create_decompress(&info);
  if (setjmp(error.back)) {
    jpeg_destroy_decompress(&info);
    return JpegResult::kDamaged;
  }
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&info, TRUE);
  const bool cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  auto made = vision::make_image(static_cast<int>(info.image_width), static_cast<int>(info.image_height));
  if (!made.ok()) {
    jpeg_destroy_decompress(&info);
    return JpegResult::kTooLarge;
  }
  image = std::move(*made);
  row.resize(static_cast<size_t>(info.image_width) * 4);
  jpeg_start_decompress(&info);
  while (info.output_scanline < info.output_height) {
    const int y = static_cast<int>(info.output_scanline);
    JSAMPROW line = cmyk ? row.data() : image.at(0, y);
    jpeg_read_scanlines(&info, &line, 1);
    if (!cmyk) continue;
    // Adobe stores inks inverted: 255 is no ink.
    const bool inverted = info.saw_Adobe_marker;
    for (int x = 0; x < image.width; ++x) {
      const uint8_t* p = row.data() + 4 * static_cast<size_t>(x);
      const int k = inverted ? p[3] : 255 - p[3];
      for (int c = 0; c < 3; ++c)
        image.at(x, y)[c] = static_cast<uint8_t>((inverted ? p[c] : 255 - p[c]) * k / 255);
    }
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  return JpegResult::kDone;
}

Result<vision::Image> decode_png(std::string_view bytes, const std::string& name) {
  png_image png;
  std::memset(&png, 0, sizeof png);
  png.version = PNG_IMAGE_VERSION;
  auto failed = [&] {
    const std::string why = png.message;
    png_image_free(&png);
    return data_loss(cat(name, ": broken PNG: ", why));
  };
  if (!png_image_begin_read_from_memory(&png, bytes.data(), bytes.size())) return failed();
  auto image = vision::make_image(static_cast<int>(std::min<png_uint_32>(png.width, INT32_MAX)),
                                  static_cast<int>(std::min<png_uint_32>(png.height, INT32_MAX)));
  if (!image.ok()) {
    png_image_free(&png);
    return invalid_argument(cat(name, ": ", image.status().message()));
  }
  png.format = PNG_FORMAT_RGB;
  png_color white{255, 255, 255};
  if (!png_image_finish_read(&png, &white, image->rgb.data(), 0, nullptr)) return failed();
  if (PNG_IMAGE_FAILED(png)) return failed();
  return image;
}

}  // namespace

Result<vision::Image> decode_image(std::string_view bytes, const std::string& name) {
  if (bytes.starts_with("\x89PNG")) {
    OAR_ASSIGN(vision::Image png, decode_png(bytes, name));
    return upright(std::move(png), exif_orientation(bytes));
  }
  if (!bytes.starts_with("\xff\xd8")) {
    return invalid_argument(cat(name, ": neither JPEG nor PNG; convert the image to one of them"));
  }
  vision::Image image;
  std::vector<uint8_t> row;
  JpegError error{};
  switch (decode_jpeg(bytes, error, image, row)) {
    case JpegResult::kDone: return upright(std::move(image), exif_orientation(bytes));
    case JpegResult::kTooLarge:
      return invalid_argument(
          cat(name, ": sides must be 1 to ", vision::kMaxSide, " and the pixels fit in 1 GiB"));
    default: return data_loss(cat(name, ": broken JPEG: ", static_cast<const char*>(error.message)));
  }
}

Result<vision::Image> read_image(const std::string& path) {
  OAR_ASSIGN(const std::string bytes, read_small_file(path, kMaxFileBytes));
  return decode_image(bytes, path);
}

Status write_png(const vision::Image& image, const std::string& path) {
  png_image png;
  std::memset(&png, 0, sizeof png);
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = PNG_FORMAT_RGB;
  if (png_image_write_to_file(&png, path.c_str(), 0, image.rgb.data(), 0, nullptr)) return ok_status();
  return unavailable(cat("cannot write ", path, ": ", static_cast<const char*>(png.message)));
}

}  // namespace oar::cli
