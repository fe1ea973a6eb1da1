// A file mapped read-only.
#pragma once

#include <rt/plugin/status.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace rt::weights {

// Move-only; the mapping lives as long as the object. The file must not change or shrink meanwhile: the size
// is checked when it is opened, and touching a page that a later truncation took away raises SIGBUS. Prefetch
// finds that before the bytes are touched.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  // Reads the pages of `part` (inside bytes()) from the disk in one go. kDataLoss if the file no longer has
  // them or the disk fails; kernels before 5.14 lack the call, then pages come when touched.
  Status Prefetch(std::span<const std::byte> part) const;

 private:
  MappedFile(std::filesystem::path path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;  // null for an empty file
  size_t size_ = 0;
};

}  // namespace rt::weights
