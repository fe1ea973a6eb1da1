#include "plugin_sdk/loader/elf_reader.h"

#include "plugin_sdk/loader/static_check.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

namespace rt {
namespace {

using Bytes = std::vector<char>;

const Bytes& Sample() {
  static const Bytes bytes = [] {
    std::ifstream in(RT_ELF_SAMPLE, std::ios::binary);
    return Bytes(std::istreambuf_iterator<char>(in), {});
  }();
  return bytes;
}

Result<ElfInfo> Read(const Bytes& bytes) { return ReadElf(std::as_bytes(std::span(bytes))); }

template <typename T>
void Patch(Bytes* bytes, size_t offset, T value) {
  std::memcpy(bytes->data() + offset, &value, sizeof value);
}

size_t ManifestOffset(const Bytes& bytes) {
  const auto at = std::search(bytes.begin(), bytes.end(), RT_MANIFEST_MAGIC,
                              RT_MANIFEST_MAGIC + sizeof(RT_MANIFEST_MAGIC));
  return static_cast<size_t>(at - bytes.begin());
}

std::string ReadMessage(const Bytes& bytes) {
  const Result<ElfInfo> elf = Read(bytes);
  return elf.ok() ? "(accepted)" : elf.status().message();
}

std::string CheckMessage(const Bytes& bytes) {
  const Result<ElfInfo> elf = Read(bytes);
  if (!elf.ok()) return elf.status().message();
  const Status status = CheckPluginElf(*elf, HostAbi::Current());
  return status.ok() ? "(accepted)" : status.message();
}

TEST(ElfReader, ReadsWhatAPluginSaysAboutItself) {
  const Result<ElfInfo> elf = Read(Sample());
  ASSERT_TRUE(elf.ok()) << elf.status().message();
  EXPECT_EQ(elf->type, ET_DYN);
  EXPECT_EQ(elf->machine, HostElfMachine());
  EXPECT_FALSE(elf->is_executable);
  EXPECT_EQ(elf->soname, "librt_sample.so");
  EXPECT_TRUE(std::find(elf->needed.begin(), elf->needed.end(), "libm.so.6") != elf->needed.end());
  EXPECT_EQ(elf->runpath, (std::vector<std::string>{"$ORIGIN/deps", "/opt/none"}));
  EXPECT_TRUE(ElfExports(*elf, RT_PLUGIN_ENTRY_NAME));
  EXPECT_FALSE(ElfExports(*elf, "rt_sample_hidden_by_default"));
  EXPECT_TRUE(std::find(elf->imports.begin(), elf->imports.end(), "cos") != elf->imports.end());
  EXPECT_EQ(elf->build_id, "00112233445566778899aabbccddeeff00112233");
  ASSERT_TRUE(elf->manifest.has_value());
  EXPECT_STREQ(elf->manifest->name, "sample");
  EXPECT_STREQ(elf->manifest->version, "1.2.3");
  EXPECT_EQ(elf->manifest->kinds, uint32_t{RT_KIND_OPS | RT_KIND_DEVICE});
  EXPECT_EQ(CheckMessage(Sample()), "(accepted)");
}

TEST(ElfReader, ReadsThisExecutableAndRefusesItAsAPlugin) {
  const Result<ElfInfo> elf = ReadPluginFile("/proc/self/exe");
  ASSERT_TRUE(elf.ok()) << elf.status().message();
  EXPECT_FALSE(elf->interpreter.empty());
  EXPECT_NE(CheckPluginElf(*elf, HostAbi::Current())
                .message()
                .find("expected a shared object, found an executable"),
            std::string::npos);
}

TEST(ElfReader, NamesWhatIsWrongWithTheHeader) {
  EXPECT_EQ(ReadMessage({}), "empty file");
  const std::string text = "#!/bin/sh\n";
  EXPECT_EQ(ReadMessage(Bytes(text.begin(), text.end())),
            "not an ELF file: it starts with \"#!/bin/s\", expected \"\\x7fELF\"");
  EXPECT_EQ(ReadMessage(Bytes(Sample().begin(), Sample().begin() + 40)),
            "truncated: the ELF header ends at byte 64, the file has 40");
  Bytes bytes = Sample();
  bytes[EI_CLASS] = ELFCLASS32;
  EXPECT_EQ(ReadMessage(bytes), "expected a 64-bit ELF file, found a 32-bit one");
  bytes = Sample();
  bytes[EI_DATA] = ELFDATA2MSB;
  EXPECT_EQ(ReadMessage(bytes), "expected a little-endian ELF file, found a big-endian one");
  bytes = Sample();
  Patch<uint16_t>(&bytes, offsetof(Elf64_Ehdr, e_phentsize), 55);
  EXPECT_EQ(ReadMessage(bytes), "expected program headers of 56 bytes, found 55");
  bytes = Sample();
  Patch<uint64_t>(&bytes, offsetof(Elf64_Ehdr, e_phoff), ~uint64_t{0} - 8);
  EXPECT_EQ(ReadMessage(bytes),
            "truncated: the program header table ends at byte beyond 2^64, the file has " +
                std::to_string(bytes.size()));
}

TEST(ElfReader, RefusesEveryTruncation) {
  // The section headers stand last in the file, so that each shorter prefix lacks something.
  for (size_t size = 0; size < Sample().size(); size += size < 4096 ? 7 : 101) {
    const Bytes prefix(Sample().begin(), Sample().begin() + static_cast<long>(size));
    EXPECT_FALSE(Read(prefix).ok()) << size << " of " << Sample().size() << " bytes";
  }
}

TEST(ElfReader, AcceptsBytesAfterTheEndAsTheDynamicLinkerDoes) {
  Bytes bytes = Sample();
  bytes.insert(bytes.end(), 1000, 'x');
  EXPECT_EQ(CheckMessage(bytes), "(accepted)");
}

TEST(ElfReader, NamesWhatIsWrongWithTheManifest) {
  const size_t at = ManifestOffset(Sample());
  ASSERT_LT(at, Sample().size());
  const auto with = [&](size_t field, uint32_t value) {
    Bytes bytes = Sample();
    Patch(&bytes, at + field, value);
    return CheckMessage(bytes);
  };
  const std::string draft = std::to_string(RT_ABI_DRAFT);
  EXPECT_EQ(with(offsetof(rt_manifest, magic), 0),
            "expected the manifest magic \"RTPLUG1\", found other bytes");
  EXPECT_EQ(with(offsetof(rt_manifest, struct_size), 8), "manifest struct_size: expected 328, found 8");
  EXPECT_EQ(with(offsetof(rt_manifest, abi_major), 2), "plugin ABI major 2, this host has 1");
  EXPECT_EQ(with(offsetof(rt_manifest, abi_major), 0), "plugin ABI major 0, this host has 1");
  EXPECT_EQ(with(offsetof(rt_manifest, abi_minor_needed), 9),
            "needs plugin ABI 1.9 or later, this host has 1.0: update the runtime");
  EXPECT_EQ(with(offsetof(rt_manifest, abi_draft), 77),
            "built against plugin ABI draft 77, this host has draft " + draft +
                ": rebuild the plugin with this runtime's SDK");
  const uint32_t other =
      HostAbi::Current().sanitizer == RT_SANITIZER_THREAD ? RT_SANITIZER_ADDRESS : RT_SANITIZER_THREAD;
  EXPECT_EQ(with(offsetof(rt_manifest, sanitizer), other),
            std::string("built with sanitizer ") + SanitizerName(other) + ", this host with " +
                SanitizerName(HostAbi::Current().sanitizer) + ": build both alike");
  EXPECT_EQ(with(offsetof(rt_manifest, reserved0), 1), "manifest reserved0: expected 0, found 1");
  EXPECT_EQ(with(offsetof(rt_manifest, kinds), 0), "its manifest names no component kind");
  EXPECT_EQ(with(offsetof(rt_manifest, kinds), 0x41), "unknown component kinds: 0x40");
  EXPECT_EQ(with(offsetof(rt_manifest, name), 0), "its manifest has an empty name");
  EXPECT_EQ(with(offsetof(rt_manifest, name), 0x2f2e2e), "its name \"../\" is not of the form [a-z0-9_-]+");
  Bytes endless = Sample();
  std::fill_n(endless.begin() + static_cast<long>(at + offsetof(rt_manifest, vendor)), 64, 'v');
  EXPECT_EQ(CheckMessage(endless), "the manifest's vendor does not end inside its 64 bytes");
}

TEST(ElfReader, NamesAForeignMachineAndAForeignEntryPoint) {
  Bytes bytes = Sample();
  const uint16_t foreign = HostElfMachine() == EM_AARCH64 ? EM_X86_64 : EM_AARCH64;
  Patch<uint16_t>(&bytes, offsetof(Elf64_Ehdr, e_machine), foreign);
  EXPECT_EQ(CheckMessage(bytes), std::string("built for ") + ElfMachineName(foreign) + " (ELF machine " +
                                     std::to_string(foreign) + "), this host is " +
                                     ElfMachineName(HostElfMachine()) + " (" +
                                     std::to_string(HostElfMachine()) + ")");
  const std::string entry = RT_PLUGIN_ENTRY_NAME;
  const auto rename = [&](const std::string& to) {
    Bytes renamed = Sample();
    for (auto at = renamed.begin();
         (at = std::search(at, renamed.end(), entry.begin(), entry.end())) != renamed.end(); ++at) {
      std::copy(to.begin(), to.end(), at);
    }
    return CheckMessage(renamed);
  };
  EXPECT_EQ(rename("rt_plugin_query_v2"),
            "plugin ABI major differs: it exports rt_plugin_query_v2, this host calls rt_plugin_query_v1");
  EXPECT_EQ(rename("my_plugin_query_v1"), "not a plugin: it does not export rt_plugin_query_v1");
}

TEST(ElfReader, RandomDamageGivesAnErrorOrAnAnswer) {
  std::mt19937 random(11);
  size_t refused = 0;
  constexpr int kRounds = 3000;
  for (int round = 0; round < kRounds; ++round) {
    Bytes bytes = Sample();
    for (uint32_t edits = 1 + random() % 8; edits > 0; --edits) {
      // Half of the edits hit the headers, where they matter most.
      const size_t tail = bytes.size() - 64 * 30;
      const size_t at = random() % 2 == 0   ? random() % bytes.size()
                        : random() % 2 == 0 ? random() % 700
                                            : tail + random() % (64 * 30);
      bytes[at] = random() % 4 == 0 ? static_cast<char>(0xff) : static_cast<char>(random());
    }
    refused += CheckMessage(bytes) != "(accepted)";
  }
  EXPECT_GT(refused, size_t{kRounds} / 10);  // the damage reaches what is checked
}

}  // namespace
}  // namespace rt
