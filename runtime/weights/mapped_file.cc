#include "runtime/weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

// In the kernel since 5.14, in glibc headers since 2.35 (include/uapi/asm-generic/mman-common.h).
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace rt::weights {
namespace {

Status SystemError(const std::filesystem::path& path, const char* call, int error) {
  const Code code = error == ENOENT                      ? Code::kNotFound
                    : error == ENOMEM || error == EMFILE ? Code::kResourceExhausted
                                                         : Code::kUnavailable;
  return {code, path.string() + ": " + call + ": " + std::strerror(error)};
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer; it has no effect on a regular file.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(path, "open", errno);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return SystemError(path, "fstat", error);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return {Code::kInvalidArgument, path.string() + ": expected a regular file"};
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      ::close(fd);
      return SystemError(path, "mmap", error);
    }
  }
  ::close(fd);
  return MappedFile(path, static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

Status MappedFile::Prefetch(std::span<const std::byte> part) const {
  if (part.empty()) return Status::Ok();
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(part.data()) & ~(page - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(part.data()) + part.size();
  if (::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ) == 0) return Status::Ok();
  if (errno != EFAULT && errno != EHWPOISON) return Status::Ok();
  return {Code::kDataLoss, path_.string() + ": bytes " + std::to_string(part.data() - data_) + " to " +
                               std::to_string(part.data() + part.size() - data_) +
                               " cannot be read: the file shrank after it was opened, or the disk fails"};
}

}  // namespace rt::weights
