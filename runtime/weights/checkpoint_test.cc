#include "runtime/weights/checkpoint.h"

#include "runtime/weights/checkpoint_fixture.h"
#include "runtime/weights/safetensors.h"

#include <gtest/gtest.h>

#include <functional>

namespace rt::weights {
namespace {

constexpr const char* kFirst = CheckpointFolder::kFirst;
constexpr const char* kSecond = CheckpointFolder::kSecond;

struct BadCheckpoint {
  const char* name;
  std::function<void(const CheckpointFolder&)> write;
  Code code;
  std::string message;  // after the folder name
};

void PrintTo(const BadCheckpoint& bad, std::ostream* out) { *out << bad.name; }

// One tensor x whose header entry is as given, before 8 bytes of data.
std::function<void(const CheckpointFolder&)> WithEntry(const std::string& entry) {
  return [entry](const CheckpointFolder& f) {
    f.Write("model.safetensors", RawFile("{\"x\":" + entry + "}", std::string(8, 'd')));
  };
}

std::function<void(const CheckpointFolder&)> WithHeader(const std::string& header, size_t data_bytes = 8) {
  return [=](const CheckpointFolder& f) {
    f.Write("model.safetensors", RawFile(header, std::string(data_bytes, 'd')));
  };
}

std::function<void(const CheckpointFolder&)> WithFile(const std::string& content) {
  return [content](const CheckpointFolder& f) { f.Write("model.safetensors", content); };
}

std::function<void(const CheckpointFolder&)> WithIndex(const std::string& content) {
  return [content](const CheckpointFolder& f) {
    f.WriteTwoShards();
    f.Write("model.safetensors.index.json", content);
  };
}

// The second shard holds 5 floats: cut its end or append to it.
std::function<void(const CheckpointFolder&)> WithSecondShard(int change) {
  return [change](const CheckpointFolder& f) {
    f.WriteTwoShards();
    std::filesystem::resize_file(f.path() / kSecond, std::filesystem::file_size(f.path() / kSecond) + change);
  };
}

std::string Entry(const std::string& name, int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) +
         "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

const BadCheckpoint kBad[] = {
    {"EmptyFolder", [](const CheckpointFolder&) {}, Code::kNotFound,
     "expected model.safetensors or model.safetensors.index.json, found neither"},
    {"PickleOnly", [](const CheckpointFolder& f) { f.Write("pytorch_model.bin", "x"); }, Code::kNotFound,
     "expected model.safetensors or model.safetensors.index.json, found neither (pytorch_model.bin: this "
     "format is not read)"},
    {"ShardsWithoutIndex",
     [](const CheckpointFolder& f) {
       f.WriteTwoShards();
       std::filesystem::remove(f.path() / kIndexFileName);
     },
     Code::kDataLoss,
     "incomplete checkpoint: model.safetensors.index.json is absent beside model-00001-of-00002.safetensors, "
     "model-00002-of-00002.safetensors"},
    {"EmptyFile", WithFile(""), Code::kDataLoss,
     "model.safetensors: expected an 8-byte header length, the file has 0 bytes"},
    {"SevenBytes", WithFile("1234567"), Code::kDataLoss,
     "model.safetensors: expected an 8-byte header length, the file has 7 bytes"},
    {"LfsPointer", WithFile("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 10\n"),
     Code::kDataLoss,
     "model.safetensors: is a Git LFS pointer (64 bytes), not the file: fetch it with `git lfs pull`"},
    {"HeaderLengthOfAnotherFormat", WithFile("GGUF\x03\x01\x02\x03________"), Code::kDataLoss,
     "model.safetensors: header length 216736845643728711 is above the format's limit of 100000000: not a "
     "safetensors file"},
    {"HeaderCut", WithFile(RawFile(std::string(100, ' '), "").substr(0, 60)), Code::kDataLoss,
     "model.safetensors: 48 bytes missing: the header takes 100 bytes, the file has 60 in all"},
    {"HeaderOfZeroBytes", WithHeader(""), Code::kDataLoss,
     "model.safetensors: header: expected `{` at its start"},
    {"HeaderNotAnObject", WithHeader("[1]"), Code::kDataLoss,
     "model.safetensors: header: expected `{` at its start"},
    {"HeaderTooDeep", WithHeader("{\"x\":{\"shape\":[[1]]}}"), Code::kDataLoss,
     "model.safetensors: header: nested deeper than 3"},
    {"HeaderDuplicateName", WithHeader("{" + Entry("x", 0, 8) + "," + Entry("x", 0, 8) + "}"),
     Code::kDataLoss, "model.safetensors: header: name \"x\" occurs twice in one object"},
    {"MetadataNotText", WithHeader("{\"__metadata__\":{\"a\":1}," + Entry("x", 0, 8) + "}"), Code::kDataLoss,
     "model.safetensors: __metadata__: a: expected a string, got number"},
    {"NoTensor", WithHeader("{\"__metadata__\":{}}", 0), Code::kDataLoss,
     "model.safetensors: holds no tensor"},
    {"TensorNotAnObject", WithEntry("3"), Code::kDataLoss,
     "model.safetensors: tensor x: expected an object, got number"},
    {"DtypeAbsent", WithEntry(R"({"shape":[8],"data_offsets":[0,8]})"), Code::kDataLoss,
     "model.safetensors: tensor x: `dtype` is absent"},
    {"UnknownField", WithEntry(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8],"scale":1})"),
     Code::kDataLoss, "model.safetensors: tensor x: unknown field `scale`"},
    {"UnknownDtype", WithEntry(R"({"dtype":"BF8","shape":[8],"data_offsets":[0,8]})"), Code::kUnsupported,
     "model.safetensors: tensor x: unknown dtype \"BF8\""},
    {"NegativeExtent", WithEntry(R"({"dtype":"U8","shape":[-8],"data_offsets":[0,8]})"), Code::kDataLoss,
     "model.safetensors: tensor x: shape: expected extents from 0 to 2^63 - 1, got -8"},
    {"FractionalExtent", WithEntry(R"({"dtype":"U8","shape":[8.0],"data_offsets":[0,8]})"), Code::kDataLoss,
     "model.safetensors: tensor x: shape: expected extents from 0 to 2^63 - 1, got 8.0"},
    {"ShapeOverflows", WithEntry(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
     Code::kDataLoss, "model.safetensors: tensor x: shape [4294967296, 4294967296] overflows"},
    {"ShapeDisagreesWithRange", WithEntry(R"({"dtype":"BF16","shape":[2,3],"data_offsets":[0,8]})"),
     Code::kDataLoss, "model.safetensors: tensor x: BF16 [2, 3] takes 12 bytes, data_offsets span 8"},
    {"OffsetsReversed", WithEntry(R"({"dtype":"U8","shape":[8],"data_offsets":[8,0]})"), Code::kDataLoss,
     "model.safetensors: tensor x: data_offsets: begin is after end in [8,0]"},
    {"OffsetsNotAPair", WithEntry(R"({"dtype":"U8","shape":[8],"data_offsets":[0,4,8]})"), Code::kDataLoss,
     "model.safetensors: tensor x: data_offsets: expected two counts of bytes, got [0,4,8]"},
    {"TensorsOverlap", WithHeader("{" + Entry("x", 0, 5) + "," + Entry("y", 4, 8) + "}"), Code::kDataLoss,
     "model.safetensors: tensor y overlaps tensor x: it begins at data byte 4, expected 5"},
    {"GapBetweenTensors", WithHeader("{" + Entry("x", 0, 4) + "," + Entry("y", 5, 8) + "}"), Code::kDataLoss,
     "model.safetensors: tensor y leaves a gap after tensor x: it begins at data byte 5, expected 4"},
    {"ShardShortByOneByte", WithSecondShard(-1), Code::kDataLoss,
     "model-00002-of-00002.safetensors: 1 bytes missing: the header describes 20 bytes of data, the file has "
     "19 after its header of 94"},
    {"ShardTooLong", WithSecondShard(3), Code::kDataLoss,
     "model-00002-of-00002.safetensors: 3 bytes too many: the header describes 20 bytes of data, the file "
     "has 23 after its header of 94"},
    {"ShardAbsent",
     [](const CheckpointFolder& f) {
       f.WriteTwoShards();
       std::filesystem::remove(f.path() / kSecond);
     },
     Code::kDataLoss, "incomplete checkpoint: 1 of 2 shards absent: model-00002-of-00002.safetensors"},
    {"ShardIsAFolder",
     [](const CheckpointFolder& f) {
       f.WriteTwoShards();
       std::filesystem::remove(f.path() / kSecond);
       std::filesystem::create_directory(f.path() / kSecond);
     },
     Code::kInvalidArgument, "model-00002-of-00002.safetensors: expected a regular file"},
    {"IndexNotJson", WithIndex("{\"weight_map\": {"), Code::kDataLoss,
     "model.safetensors.index.json: not JSON at byte 17"},
    {"IndexWithoutMap", WithIndex("{}"), Code::kDataLoss,
     "model.safetensors.index.json: expected an object with `weight_map`, an object of tensor name to file "
     "name"},
    {"IndexEmpty", WithIndex(R"({"weight_map":{}})"), Code::kDataLoss,
     "model.safetensors.index.json: weight_map is empty"},
    {"IndexNamesATensorTwice", WithIndex(R"({"weight_map":{"a":"m.safetensors","a":"m.safetensors"}})"),
     Code::kDataLoss, "model.safetensors.index.json: name \"a\" occurs twice in one object"},
    {"IndexLeavesTheFolder", WithIndex(R"({"weight_map":{"a":"../m.safetensors"}})"), Code::kDataLoss,
     "model.safetensors.index.json: tensor a: expected a *.safetensors file name without folders, got "
     "\"../m.safetensors\""},
    {"IndexNamesAnAbsentTensor",
     [](const CheckpointFolder& f) {
       f.WriteTwoShards();
       f.WriteIndex({{"a", kFirst}, {"b", kFirst}, {"c", kSecond}, {"d", kSecond}});
     },
     Code::kDataLoss,
     "model.safetensors.index.json places tensor d in model-00002-of-00002.safetensors, whose header lacks "
     "it"},
    {"IndexNamesTheWrongShard",
     [](const CheckpointFolder& f) {
       f.WriteTwoShards();
       f.WriteIndex({{"a", kFirst}, {"b", kSecond}, {"c", kSecond}});
     },
     Code::kDataLoss,
     "model.safetensors.index.json places tensor b in model-00002-of-00002.safetensors, whose header lacks "
     "it; "
     "it lies in model-00001-of-00002.safetensors"},
    {"IndexOmitsATensor",
     [](const CheckpointFolder& f) {
       f.WriteTwoShards();
       f.WriteIndex({{"a", kFirst}, {"c", kSecond}});
     },
     Code::kDataLoss,
     "model-00001-of-00002.safetensors holds tensor b, which model.safetensors.index.json does not name"},
    {"TensorInBothShards",
     [](const CheckpointFolder& f) {
       f.WriteTwoShards();
       f.Write(kSecond, SafetensorsFile({CountingTensor("c", {5}), CountingTensor("a", {2, 3})}));
     },
     Code::kDataLoss,
     "tensor a lies in both model-00001-of-00002.safetensors and model-00002-of-00002.safetensors"},
    {"StaleIndexBesideSingleFile",
     [](const CheckpointFolder& f) {
       f.Write("model.safetensors", SafetensorsFile({CountingTensor("a", {2})}));
       f.WriteIndex({{"a", kFirst}, {"b", kSecond}});
     },
     Code::kDataLoss,
     "model.safetensors.index.json names model-00001-of-00002.safetensors, model-00002-of-00002.safetensors "
     "but not "
     "model.safetensors beside it: index or file is stale, remove the wrong one"},
    {"IndexDisagreesWithSingleFile",
     [](const CheckpointFolder& f) {
       f.Write("model.safetensors", SafetensorsFile({CountingTensor("a", {2})}));
       f.WriteIndex({{"old", "model.safetensors"}});
     },
     Code::kDataLoss,
     "model.safetensors.index.json places tensor old in model.safetensors, whose header lacks it; "
     "model.safetensors holds tensor a, which model.safetensors.index.json does not name"},
    {"ShardOfAnotherSplitLeftBehind",
     [](const CheckpointFolder& f) {
       f.WriteTwoShards();
       f.Write("model-00003-of-00003.safetensors", SafetensorsFile({CountingTensor("z", {1})}));
     },
     Code::kDataLoss,
     "model.safetensors.index.json names model-00001-of-00002.safetensors, model-00002-of-00002.safetensors "
     "but not "
     "model-00003-of-00003.safetensors beside it: index or file is stale, remove the wrong one"},
};

class BadCheckpointTest : public testing::TestWithParam<BadCheckpoint> {};

TEST_P(BadCheckpointTest, IsRefusedWithItsMessage) {
  const CheckpointFolder folder;
  GetParam().write(folder);
  const auto opened = Checkpoint::Open(folder.path());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), GetParam().code);
  const std::string message = opened.status().message();
  EXPECT_TRUE(message.starts_with(folder.path().string())) << message;
  EXPECT_NE(message.find(GetParam().message), std::string::npos)
      << "expected: " << GetParam().message << "\n     got: " << message;
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, BadCheckpointTest, testing::ValuesIn(kBad),
                         [](const auto& info) { return std::string(info.param.name); });

std::span<const std::byte> AsBytes(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(SafetensorsHeader, EveryProperPrefixOfAFileIsRefused) {
  const std::string file = SafetensorsFile({CountingTensor("a", {2, 3}), CountingTensor("b", {4})});
  ASSERT_TRUE(ParseSafetensorsHeader(AsBytes(file), "f").ok());
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_EQ(ParseSafetensorsHeader(AsBytes(file.substr(0, size)), "f").status().code(), Code::kDataLoss)
        << size << " bytes";
  }
}

// Each header byte replaced by each value: an error or a header whose ranges lie in the file; the sanitizers
// watch the rest.
TEST(SafetensorsHeader, NoSingleWrongByteLeadsOutsideTheFile) {
  const std::string good = SafetensorsFile({CountingTensor("a", {2}), CountingTensor("b", {})});
  const size_t header_end = good.size() - 12;
  for (size_t at = 0; at < header_end; ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string file = good;
      file[at] = static_cast<char>(value);
      const auto header = ParseSafetensorsHeader(AsBytes(file), "f");
      if (!header.ok()) continue;
      for (const TensorEntry& t : header->tensors)
        ASSERT_TRUE(t.begin <= t.end && t.end <= file.size()) << "byte " << at << " = " << value;
    }
  }
}

TEST(Checkpoint, AbsentFolderIsNamed) {
  const auto opened = Checkpoint::Open("/nonexistent/model");
  EXPECT_EQ(opened.status().ToString(), "NOT_FOUND: /nonexistent/model: expected a model folder, found none");
}

TEST(Checkpoint, EveryShortShardIsNamedAtOnce) {
  const CheckpointFolder folder;
  folder.WriteTwoShards();
  for (const char* shard : {kFirst, kSecond}) {
    std::filesystem::resize_file(folder.path() / shard,
                                 std::filesystem::file_size(folder.path() / shard) - 4);
  }
  const std::string message = Checkpoint::Open(folder.path()).status().message();
  EXPECT_NE(message.find(std::string(kFirst) + ": 4 bytes missing"), std::string::npos) << message;
  EXPECT_NE(message.find(std::string(kSecond) + ": 4 bytes missing"), std::string::npos) << message;
}

TEST(Checkpoint, LongListsOfFindingsAreCounted) {
  const CheckpointFolder folder;
  folder.WriteTwoShards();
  std::map<std::string, std::string> map = {{"a", kFirst}, {"b", kFirst}, {"c", kSecond}};
  for (int i = 0; i < 25; ++i) map["ghost." + std::to_string(i)] = kFirst;
  folder.WriteIndex(map);
  const std::string message = Checkpoint::Open(folder.path()).status().message();
  EXPECT_TRUE(message.ends_with("; and 15 more")) << message;
}

TEST(Checkpoint, TwoShardsOpenWithNamesShapesAndBytes) {
  const CheckpointFolder folder;
  folder.WriteTwoShards();
  auto opened = Checkpoint::Open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  const Checkpoint checkpoint = std::move(*opened);  // lookup survives a move
  EXPECT_EQ(checkpoint.tensors().size(), 3u);
  EXPECT_EQ(checkpoint.total_bytes(), 4u * (6 + 4 + 5));
  EXPECT_EQ(checkpoint.Find("nothing"), nullptr);
  const CheckpointTensor* c = checkpoint.Find("c");
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(c->dtype, DType::kF32);
  EXPECT_EQ(c->shape, (std::vector<int64_t>{5}));
  EXPECT_EQ(checkpoint.file(c->file).path().filename(), kSecond);
  const FixtureTensor expected = CountingTensor("c", {5});
  ASSERT_EQ(c->data.size(), expected.bytes.size());
  EXPECT_EQ(std::memcmp(c->data.data(), expected.bytes.data(), expected.bytes.size()), 0);
}

TEST(Checkpoint, ScalarsAndEmptyTensorsAreLegal) {
  const CheckpointFolder folder;
  folder.Write("model.safetensors",
               SafetensorsFile({CountingTensor("empty", {0, 7}), CountingTensor("scalar", {}),
                                CountingTensor("tail", {0})}));
  const auto opened = Checkpoint::Open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ(opened->Find("scalar")->data.size(), 4u);
  EXPECT_EQ(opened->Find("empty")->data.size(), 0u);
  EXPECT_EQ(opened->Find("tail")->data.size(), 0u);
}

TEST(Checkpoint, WrongTotalSizeIsAWarning) {
  const CheckpointFolder folder;
  folder.WriteTwoShards();
  folder.Write(kIndexFileName, nlohmann::json{{"metadata", {{"total_size", 61}}},
                                              {"weight_map", {{"a", kFirst}, {"b", kFirst}, {"c", kSecond}}}}
                                   .dump());
  const auto opened = Checkpoint::Open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  ASSERT_EQ(opened->warnings().size(), 1u);
  EXPECT_EQ(opened->warnings()[0],
            "model.safetensors.index.json: total_size is 61, the tensors take 60 bytes");
}

TEST(Checkpoint, FileShrunkAfterOpeningIsFoundBeforeItsBytesAreTouched) {
  const CheckpointFolder folder;
  folder.Write("model.safetensors", SafetensorsFile({CountingTensor("a", {1 << 16})}));
  const auto opened = Checkpoint::Open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  const CheckpointTensor* a = opened->Find("a");
  ASSERT_TRUE(opened->file(a->file).Prefetch(a->data).ok());
  std::filesystem::resize_file(folder.path() / "model.safetensors", 4096);
  const Status status = opened->file(a->file).Prefetch(a->data);
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find("the file shrank after it was opened"), std::string::npos)
      << status.message();
}

TEST(Checkpoint, ShippedTinyModelOpensWhole) {
  const auto opened = Checkpoint::Open(std::filesystem::path(RT_ZOO_DIR) / "tiny-gdn");
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ(opened->num_files(), 2u);
  EXPECT_EQ(opened->total_bytes(), 20929472u);  // metadata.total_size of its index
  EXPECT_TRUE(opened->warnings().empty());
  const CheckpointTensor* embedding = opened->Find("model.embed_tokens.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->dtype, DType::kBf16);
  EXPECT_EQ(embedding->shape[0], 4096);
}

// Written by several library versions: single files and shards, int64 buffers, vision towers.
TEST(Checkpoint, EveryTestModelOpensWhole) {
  const std::filesystem::path models = std::filesystem::path(RT_TESTDATA_DIR) / "models";
  std::vector<std::filesystem::path> folders = {models / "tiny-kda"};
  for (const auto& entry : std::filesystem::directory_iterator(models / "micro"))
    folders.push_back(entry.path());
  EXPECT_EQ(folders.size(), 9u);
  for (const auto& folder : folders) {
    const auto opened = Checkpoint::Open(folder);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    EXPECT_EQ(opened->warnings(), std::vector<std::string>{}) << folder;
  }
}

}  // namespace
}  // namespace rt::weights
