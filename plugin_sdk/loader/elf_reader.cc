#include "plugin_sdk/loader/elf_reader.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace rt {
namespace {

// Bounds on tables, far above what a plugin of any size holds, so that a hostile header cannot make the
// reader work for ever.
constexpr uint64_t kMaxSymbols = 4'000'000;
constexpr size_t kMaxNeeded = 1024;
constexpr size_t kMaxKeptSymbols = 100'000;

// Checked access to the file's bytes. Records are copied out, because nothing in a file is aligned.
class File {
 public:
  explicit File(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t size() const { return bytes_.size(); }
  bool Holds(uint64_t offset, uint64_t count) const { return offset <= size() && count <= size() - offset; }

  // The caller has checked that the record lies inside.
  template <typename T>
  T At(uint64_t offset) const {
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }

  std::span<const std::byte> Range(uint64_t offset, uint64_t count) const {
    return bytes_.subspan(offset, count);
  }

 private:
  std::span<const std::byte> bytes_;
};

Status Damaged(const std::string& text) { return {Code::kDataLoss, text}; }

Status Truncated(const std::string& what, uint64_t offset, uint64_t count, uint64_t size) {
  const std::string end =
      count > std::numeric_limits<uint64_t>::max() - offset ? "beyond 2^64" : std::to_string(offset + count);
  return Damaged("truncated: " + what + " ends at byte " + end + ", the file has " + std::to_string(size));
}

std::string FirstBytes(const File& file) {
  std::string out;
  for (const std::byte b : file.Range(0, std::min<uint64_t>(file.size(), 8))) {
    const auto c = static_cast<unsigned char>(b);
    out += c >= 0x20 && c < 0x7f ? static_cast<char>(c) : '.';
  }
  return out;
}

// A string table section; strings that leave it read as "".
class Strings {
 public:
  Strings() = default;
  Strings(const File& file, uint64_t offset, uint64_t size) : bytes_(file.Range(offset, size)) {}

  std::string Get(uint64_t at) const {
    if (at >= bytes_.size()) return {};
    const char* begin = reinterpret_cast<const char*>(bytes_.data()) + at;
    const size_t length = strnlen(begin, bytes_.size() - at);
    return length == bytes_.size() - at ? std::string() : std::string(begin, length);
  }

 private:
  std::span<const std::byte> bytes_;
};

class ElfParser {
 public:
  explicit ElfParser(std::span<const std::byte> bytes) : file_(bytes) {}

  Result<ElfInfo> Parse() {
    RT_RETURN_IF_ERROR(ReadHeader());
    RT_RETURN_IF_ERROR(ReadSegments());
    RT_RETURN_IF_ERROR(ReadSections());
    RT_RETURN_IF_ERROR(ReadDynamic());
    RT_RETURN_IF_ERROR(ReadSymbols());
    RT_RETURN_IF_ERROR(ReadManifest());
    ReadBuildId();
    return std::move(info_);
  }

 private:
  Status ReadHeader() {
    if (file_.size() == 0) return Damaged("empty file");
    if (file_.size() < SELFMAG || std::memcmp(file_.Range(0, SELFMAG).data(), ELFMAG, SELFMAG) != 0) {
      return {Code::kUnsupported,
              "not an ELF file: it starts with \"" + FirstBytes(file_) + "\", expected \"\\x7fELF\""};
    }
    if (file_.size() < sizeof(Elf64_Ehdr))
      return Truncated("the ELF header", 0, sizeof(Elf64_Ehdr), file_.size());
    header_ = file_.At<Elf64_Ehdr>(0);
    if (header_.e_ident[EI_CLASS] != ELFCLASS64) {
      const int found = header_.e_ident[EI_CLASS];
      return {Code::kUnsupported,
              std::string("expected a 64-bit ELF file, found ") +
                  (found == ELFCLASS32 ? "a 32-bit one" : "class " + std::to_string(found))};
    }
    if (header_.e_ident[EI_DATA] != ELFDATA2LSB)
      return {Code::kUnsupported, "expected a little-endian ELF file, found a big-endian one"};
    if (header_.e_version != EV_CURRENT) {
      return {Code::kUnsupported, "expected ELF version 1, found " + std::to_string(header_.e_version)};
    }
    info_.type = header_.e_type;
    info_.machine = header_.e_machine;
    info_.is_executable = header_.e_type == ET_EXEC;
    return Status::Ok();
  }

  Status ReadSegments() {
    if (header_.e_phnum == 0) return Status::Ok();
    if (header_.e_phentsize != sizeof(Elf64_Phdr)) {
      return Damaged("expected program headers of 56 bytes, found " + std::to_string(header_.e_phentsize));
    }
    const uint64_t bytes = uint64_t{header_.e_phnum} * sizeof(Elf64_Phdr);
    if (!file_.Holds(header_.e_phoff, bytes))
      return Truncated("the program header table", header_.e_phoff, bytes, file_.size());
    for (uint16_t i = 0; i < header_.e_phnum; ++i) {
      const auto segment = file_.At<Elf64_Phdr>(header_.e_phoff + i * sizeof(Elf64_Phdr));
      if (segment.p_type == PT_NULL) continue;
      if (!file_.Holds(segment.p_offset, segment.p_filesz)) {
        return Truncated("segment " + std::to_string(i), segment.p_offset, segment.p_filesz, file_.size());
      }
      if (segment.p_type == PT_INTERP)
        info_.interpreter = Strings(file_, segment.p_offset, segment.p_filesz).Get(0);
      segments_.push_back(segment);
    }
    return Status::Ok();
  }

  Status ReadSections() {
    if (header_.e_shnum == 0) return Status::Ok();
    if (header_.e_shentsize != sizeof(Elf64_Shdr)) {
      return Damaged("expected section headers of 64 bytes, found " + std::to_string(header_.e_shentsize));
    }
    const uint64_t bytes = uint64_t{header_.e_shnum} * sizeof(Elf64_Shdr);
    if (!file_.Holds(header_.e_shoff, bytes))
      return Truncated("the section header table", header_.e_shoff, bytes, file_.size());
    for (uint16_t i = 0; i < header_.e_shnum; ++i) {
      const auto section = file_.At<Elf64_Shdr>(header_.e_shoff + i * sizeof(Elf64_Shdr));
      if (section.sh_type != SHT_NULL && section.sh_type != SHT_NOBITS &&
          !file_.Holds(section.sh_offset, section.sh_size)) {
        return Truncated("section " + std::to_string(i), section.sh_offset, section.sh_size, file_.size());
      }
      sections_.push_back(section);
    }
    if (header_.e_shstrndx < sections_.size()) section_names_ = StringsOf(header_.e_shstrndx);
    return Status::Ok();
  }

  Strings StringsOf(uint32_t index) const {
    if (index >= sections_.size() || sections_[index].sh_type != SHT_STRTAB) return {};
    return Strings(file_, sections_[index].sh_offset, sections_[index].sh_size);
  }

  // What the dynamic linker reads: PT_DYNAMIC, with the string table found through the loaded segments.
  Status ReadDynamic() {
    const auto dynamic = std::find_if(segments_.begin(), segments_.end(),
                                      [](const Elf64_Phdr& s) { return s.p_type == PT_DYNAMIC; });
    if (dynamic == segments_.end()) return Status::Ok();
    std::vector<Elf64_Dyn> entries;
    for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= dynamic->p_filesz; at += sizeof(Elf64_Dyn)) {
      entries.push_back(file_.At<Elf64_Dyn>(dynamic->p_offset + at));
      if (entries.back().d_tag == DT_NULL) break;
    }
    const auto value_of = [&](int64_t tag) {
      const auto found =
          std::find_if(entries.begin(), entries.end(), [&](const Elf64_Dyn& e) { return e.d_tag == tag; });
      return found == entries.end() ? uint64_t{0} : found->d_un.d_val;
    };
    RT_ASSIGN_OR_RETURN(const Strings strings, DynamicStrings(value_of(DT_STRTAB), value_of(DT_STRSZ)));
    for (const Elf64_Dyn& entry : entries) {
      if (entry.d_tag == DT_NEEDED) {
        if (info_.needed.size() == kMaxNeeded)
          return Damaged("more than " + std::to_string(kMaxNeeded) + " needed libraries");
        info_.needed.push_back(strings.Get(entry.d_un.d_val));
      } else if (entry.d_tag == DT_SONAME) {
        info_.soname = strings.Get(entry.d_un.d_val);
      } else if (entry.d_tag == DT_RUNPATH || entry.d_tag == DT_RPATH) {
        SplitPath(strings.Get(entry.d_un.d_val));
      }
    }
    info_.static_tls = (value_of(DT_FLAGS) & DF_STATIC_TLS) != 0;
    if ((value_of(DT_FLAGS_1) & DF_1_PIE) != 0) info_.is_executable = true;
    return Status::Ok();
  }

  Result<Strings> DynamicStrings(uint64_t address, uint64_t size) const {
    if (address == 0) return Strings();
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_LOAD || address < segment.p_vaddr) continue;
      const uint64_t delta = address - segment.p_vaddr;
      if (delta < segment.p_filesz && size <= segment.p_filesz - delta)
        return Strings(file_, segment.p_offset + delta, size);
    }
    return Damaged("the dynamic string table lies in no loaded segment");
  }

  void SplitPath(const std::string& path) {
    size_t start = 0;
    while (start <= path.size()) {
      const size_t end = std::min(path.find(':', start), path.size());
      info_.runpath.push_back(path.substr(start, end - start));
      start = end + 1;
    }
  }

  Status ReadSymbols() {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_DYNSYM) continue;
      if (section.sh_entsize != sizeof(Elf64_Sym)) {
        return Damaged("expected dynamic symbols of 24 bytes, found " + std::to_string(section.sh_entsize));
      }
      const uint64_t count = section.sh_size / sizeof(Elf64_Sym);
      if (count > kMaxSymbols)
        return Damaged("more than " + std::to_string(kMaxSymbols) + " dynamic symbols");
      const Strings names = StringsOf(section.sh_link);
      for (uint64_t i = 1; i < count; ++i)
        KeepSymbol(file_.At<Elf64_Sym>(section.sh_offset + i * sizeof(Elf64_Sym)), names);
    }
    return Status::Ok();
  }

  void KeepSymbol(const Elf64_Sym& symbol, const Strings& names) {
    const int bind = ELF64_ST_BIND(symbol.st_info), visibility = ELF64_ST_VISIBILITY(symbol.st_other);
    if (bind == STB_LOCAL || visibility == STV_HIDDEN || visibility == STV_INTERNAL) return;
    std::vector<std::string>& list = symbol.st_shndx == SHN_UNDEF ? info_.imports : info_.exports;
    if (list.size() >= kMaxKeptSymbols) return;
    std::string name = names.Get(symbol.st_name);
    if (name.empty()) return;
    if (bind == STB_GNU_UNIQUE && symbol.st_shndx != SHN_UNDEF) info_.uniques.push_back(name);
    list.push_back(std::move(name));
  }

  Status ReadManifest() {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type == SHT_NOBITS || section_names_.Get(section.sh_name) != RT_MANIFEST_SECTION)
        continue;
      if (section.sh_size != sizeof(rt_manifest)) {
        return Damaged("expected a manifest of " + std::to_string(sizeof(rt_manifest)) + " bytes, found " +
                       std::to_string(section.sh_size));
      }
      const auto manifest = file_.At<rt_manifest>(section.sh_offset);
      if (std::memcmp(manifest.magic, RT_MANIFEST_MAGIC, sizeof(manifest.magic)) != 0) {
        return Damaged("expected the manifest magic \"" RT_MANIFEST_MAGIC "\", found other bytes");
      }
      const std::pair<const char*, std::span<const char>> texts[] = {{"name", manifest.name},
                                                                     {"vendor", manifest.vendor},
                                                                     {"version", manifest.version},
                                                                     {"targets", manifest.targets}};
      for (const auto& [field, text] : texts) {
        if (std::find(text.begin(), text.end(), '\0') == text.end()) {
          return Damaged(std::string("the manifest's ") + field + " does not end inside its " +
                         std::to_string(text.size()) + " bytes");
        }
      }
      info_.manifest = manifest;
      return Status::Ok();
    }
    return Status::Ok();
  }

  // Note records: name size, descriptor size, type, name, descriptor, each padded to 4 bytes.
  void ReadBuildId() {
    constexpr uint32_t kGnuNameBytes = 4;  // "GNU" and NUL
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_NOTE) continue;
      uint64_t at = segment.p_offset;
      const uint64_t end = segment.p_offset + segment.p_filesz;
      while (end - at >= sizeof(Elf64_Nhdr)) {
        const auto note = file_.At<Elf64_Nhdr>(at);
        const uint64_t name_bytes = (uint64_t{note.n_namesz} + 3) & ~uint64_t{3};
        const uint64_t desc_bytes = (uint64_t{note.n_descsz} + 3) & ~uint64_t{3};
        if (end - at - sizeof(Elf64_Nhdr) < name_bytes + desc_bytes) break;
        const uint64_t name_at = at + sizeof(Elf64_Nhdr), desc_at = name_at + name_bytes;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == kGnuNameBytes && note.n_descsz <= 64 &&
            std::memcmp(file_.Range(name_at, kGnuNameBytes).data(), "GNU", kGnuNameBytes) == 0) {
          info_.build_id = Hex(file_.Range(desc_at, note.n_descsz));
          return;
        }
        at = desc_at + desc_bytes;
      }
    }
  }

  static std::string Hex(std::span<const std::byte> bytes) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string out;
    for (const std::byte b : bytes) {
      out += kDigits[static_cast<unsigned>(b) >> 4];
      out += kDigits[static_cast<unsigned>(b) & 15];
    }
    return out;
  }

  File file_;
  Elf64_Ehdr header_ = {};
  std::vector<Elf64_Phdr> segments_;
  std::vector<Elf64_Shdr> sections_;
  Strings section_names_;
  ElfInfo info_;
};

}  // namespace

Result<ElfInfo> ReadElf(std::span<const std::byte> file) { return ElfParser(file).Parse(); }

const char* ElfMachineName(uint16_t machine) {
  switch (machine) {
    case EM_386:
      return "x86";
    case EM_X86_64:
      return "x86-64";
    case EM_ARM:
      return "arm";
    case EM_AARCH64:
      return "aarch64";
    case EM_PPC64:
      return "ppc64";
    case EM_S390:
      return "s390";
    case EM_RISCV:
      return "riscv";
    case 258:
      return "loongarch";  // EM_LOONGARCH, absent from older <elf.h>
    default:
      return "unknown";
  }
}

uint16_t HostElfMachine() {
#if defined(__x86_64__)
  return EM_X86_64;
#elif defined(__aarch64__)
  return EM_AARCH64;
#elif defined(__riscv)
  return EM_RISCV;
#elif defined(__powerpc64__)
  return EM_PPC64;
#elif defined(__loongarch__)
  return 258;
#else
#error "name this machine here"
#endif
}

bool ElfExports(const ElfInfo& elf, const std::string& name) {
  return std::find(elf.exports.begin(), elf.exports.end(), name) != elf.exports.end();
}

}  // namespace rt
