// A YAML document as a plain tree that keeps what strict reading needs and yaml-cpp's own nodes lose:
// duplicate keys, whether a scalar was quoted, the position of every node, and the number of documents.
#pragma once

#include <rt/plugin/status.hpp>

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rt {

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kNull;
  int line = 0, column = 0;  // 1-based
  bool quoted = false;       // scalars: written with quotes or as a block, hence always text
  std::string scalar;
  std::vector<const YamlNode*> items;  // lists
  std::vector<std::pair<const YamlNode*, const YamlNode*>>
      entries;  // maps, in file order, duplicates included
};

// Owns its nodes. An alias (*a) is a second pointer to the anchored node.
class YamlTree {
 public:
  YamlTree() = default;
  YamlTree(YamlTree&&) = default;  // nodes keep their addresses
  YamlTree& operator=(YamlTree&&) = default;

  static constexpr size_t kMaxBytes = 1 << 20;
  static constexpr size_t kMaxNodes = 20000;
  static constexpr int kMaxDepth = 32;

  // `name` stands before each message: "name:line:column: message". An empty text gives a null root.
  // Errors: syntax, more than one document, custom tags, an anchor that contains itself, the limits above.
  static Result<YamlTree> Parse(std::string_view text, const std::string& name);

  const YamlNode& root() const { return *root_; }

 private:
  std::deque<YamlNode> nodes_;
  const YamlNode* root_ = nullptr;
};

// What a message calls a node: `the integer 8`, `the text "8"`, `a list`, ….
std::string DescribeYaml(const YamlNode& node);

// How YAML 1.2's core schema reads a scalar.
enum class ScalarKind { kNull, kBool, kInteger, kFloat, kText };
ScalarKind ClassifyScalar(const YamlNode& node);

}  // namespace rt
