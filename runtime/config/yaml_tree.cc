#include "runtime/config/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <sstream>

namespace rt {
namespace {

// Thrown out of yaml-cpp's callbacks, caught in Parse.
struct TreeError {
  YAML::Mark mark;
  std::string text;
};

// Builds the tree from parse events. A stack holds the open containers; a map alternates between key and
// value.
class Builder : public YAML::EventHandler {
 public:
  explicit Builder(std::deque<YamlNode>* nodes) : nodes_(*nodes) {}

  const YamlNode* root() const { return root_; }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Place(NewNode(YamlNode::Kind::kNull, mark, anchor), mark);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) throw TreeError{mark, "unknown alias"};
    const bool open =
        std::any_of(stack_.begin(), stack_.end(), [&](const Open& o) { return o.node == found->second; });
    if (open) throw TreeError{mark, "an anchor that contains itself"};
    Place(found->second, mark);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    CheckTag(mark, tag);
    YamlNode* node = NewNode(YamlNode::Kind::kScalar, mark, anchor);
    node->scalar = value;
    node->quoted = tag == "!";  // yaml-cpp's mark of a scalar that is not plain
    Place(node, mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Push(YamlNode::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { stack_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Push(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { stack_.pop_back(); }

 private:
  struct Open {
    YamlNode* node;
    const YamlNode* key;  // of a map: the key that waits for its value
  };

  static void CheckTag(const YAML::Mark& mark, const std::string& tag) {
    if (!tag.empty() && tag != "?" && tag != "!")
      throw TreeError{mark, "tags are not supported, found " + tag};
  }

  YamlNode* NewNode(YamlNode::Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (nodes_.size() >= YamlTree::kMaxNodes) {
      throw TreeError{mark, "more than " + std::to_string(YamlTree::kMaxNodes) + " values"};
    }
    YamlNode& node = nodes_.emplace_back();
    node.kind = kind;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    if (anchor != YAML::NullAnchor) anchors_[anchor] = &node;
    return &node;
  }

  void Push(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    CheckTag(mark, tag);
    if (stack_.size() >= static_cast<size_t>(YamlTree::kMaxDepth)) {
      throw TreeError{mark, "nested deeper than " + std::to_string(YamlTree::kMaxDepth) + " levels"};
    }
    YamlNode* node = NewNode(kind, mark, anchor);
    Place(node, mark);
    stack_.push_back({node, nullptr});
  }

  void Place(const YamlNode* node, const YAML::Mark& mark) {
    if (stack_.empty()) {
      root_ = node;
      return;
    }
    Open& open = stack_.back();
    if (open.node->kind == YamlNode::Kind::kList) {
      open.node->items.push_back(node);
    } else if (open.key == nullptr) {
      if (node->kind == YamlNode::Kind::kList || node->kind == YamlNode::Kind::kMap) {
        throw TreeError{mark, "expected a name as key, found " + DescribeYaml(*node)};
      }
      open.key = node;
    } else {
      open.node->entries.emplace_back(open.key, node);
      open.key = nullptr;
    }
  }

  std::deque<YamlNode>& nodes_;
  std::map<YAML::anchor_t, const YamlNode*> anchors_;
  std::vector<Open> stack_;
  const YamlNode* root_ = nullptr;
};

// Counts nodes as a reader meets them, so that a few aliases of aliases cannot stand for millions of values.
Status CheckExpansion(const YamlNode& node, const std::string& name, size_t* budget, int depth) {
  if (*budget == 0 || depth > YamlTree::kMaxDepth) {
    return {Code::kInvalidArgument, name + ": aliases expand to more than " +
                                        std::to_string(YamlTree::kMaxNodes) + " values or " +
                                        std::to_string(YamlTree::kMaxDepth) + " levels"};
  }
  --*budget;
  for (const YamlNode* item : node.items) RT_RETURN_IF_ERROR(CheckExpansion(*item, name, budget, depth + 1));
  for (const auto& [key, value] : node.entries) {
    RT_RETURN_IF_ERROR(CheckExpansion(*value, name, budget, depth + 1));
  }
  return Status::Ok();
}

Status ErrorAt(const std::string& name, const YAML::Mark& mark, const std::string& text) {
  if (mark.is_null()) return {Code::kInvalidArgument, name + ": " + text};
  return {Code::kInvalidArgument,
          name + ":" + std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1) + ": " + text};
}

bool IsInteger(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

// [-+]? ( . digits | digits [. digits?] ) ([eE] [-+]? digits)?, or .inf and .nan
bool IsFloat(std::string_view text) {
  if (text == ".nan" || text == ".NaN" || text == ".NAN") return true;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (text == ".inf" || text == ".Inf" || text == ".INF") return true;
  size_t at = 0, digits = 0;
  const auto skip_digits = [&] {
    const size_t start = at;
    while (at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]))) ++at;
    return at - start;
  };
  digits = skip_digits();
  if (at < text.size() && text[at] == '.') {
    ++at;
    digits += skip_digits();
  }
  if (digits == 0) return false;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    if (skip_digits() == 0) return false;
  }
  return at == text.size();
}

std::string Shortened(const std::string& text) {
  constexpr size_t kMost = 60;
  std::string out;
  for (const unsigned char c : text.substr(0, kMost))
    out += c < 0x20 || c == 0x7f ? '?' : static_cast<char>(c);
  return text.size() > kMost ? out + "…" : out;
}

}  // namespace

Result<YamlTree> YamlTree::Parse(std::string_view text, const std::string& name) {
  if (text.size() > kMaxBytes) {
    return {Code::kInvalidArgument, name + ": " + std::to_string(text.size()) + " bytes, at most " +
                                        std::to_string(kMaxBytes) + " are read"};
  }
  const size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    return {Code::kInvalidArgument, name + ": not a text file (NUL at byte " + std::to_string(nul) + ")"};
  }
  YamlTree tree;
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    Builder builder(&tree.nodes_);
    if (parser.HandleNextDocument(builder)) {
      Builder second(&tree.nodes_);
      if (parser.HandleNextDocument(second)) {
        const YamlNode* node = second.root();
        return {Code::kInvalidArgument, name + ":" + std::to_string(node == nullptr ? 1 : node->line) +
                                            ":1: a second document; a configuration is one document"};
      }
    }
    tree.root_ = builder.root();
  } catch (const TreeError& e) {
    return ErrorAt(name, e.mark, e.text);
  } catch (const YAML::Exception& e) {
    return ErrorAt(name, e.mark, "not valid YAML: " + e.msg);
  } catch (const std::exception& e) {
    return {Code::kInvalidArgument, name + ": not valid YAML: " + e.what()};
  }
  if (tree.root_ == nullptr) {
    YamlNode& empty = tree.nodes_.emplace_back();
    empty.line = empty.column = 1;
    tree.root_ = &empty;
  }
  size_t budget = kMaxNodes;
  RT_RETURN_IF_ERROR(CheckExpansion(*tree.root_, name, &budget, 0));
  return tree;
}

ScalarKind ClassifyScalar(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kNull) return ScalarKind::kNull;
  const std::string& text = node.scalar;
  if (node.quoted) return ScalarKind::kText;
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL")
    return ScalarKind::kNull;
  if (text == "true" || text == "false") return ScalarKind::kBool;
  if (IsInteger(text)) return ScalarKind::kInteger;
  if (IsFloat(text)) return ScalarKind::kFloat;
  return ScalarKind::kText;
}

std::string DescribeYaml(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kList:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a section";
    case YamlNode::Kind::kScalar:
      break;
  }
  switch (ClassifyScalar(node)) {
    case ScalarKind::kNull:
      return "nothing";
    case ScalarKind::kBool:
      return "the boolean " + node.scalar;
    case ScalarKind::kInteger:
      return "the integer " + Shortened(node.scalar);
    case ScalarKind::kFloat:
      return "the number " + Shortened(node.scalar);
    case ScalarKind::kText:
      break;
  }
  return "the text \"" + Shortened(node.scalar) + "\"";
}

}  // namespace rt
