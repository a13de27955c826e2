// An index of words, kept in memory, with a small query language.
#include <algorithm>
#include <cctype>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#define INDEX_VERSION_MAJOR 2
#define INDEX_CONCAT_(a, b) a##b
#define INDEX_CONCAT(a, b) INDEX_CONCAT_(a, b)
#define INDEX_REGISTER(kind, ...)                                      \
  namespace {                                                          \
  const bool INDEX_CONCAT(registered_, __LINE__) =                     \
      ::words::Registry::instance().add(#kind, [](auto&&... arguments) \
      { return std::make_unique<kind>(__VA_ARGS__); });                \
  }

namespace words {

using Position = std::uint32_t;
using Postings = std::vector<Position>;

/// Where a word stands: the document and the place in it.
struct Hit {
  Position document = 0;
  Position offset = 0;

  friend bool operator<(const Hit& one, const Hit& other) noexcept {
    return std::tie(one.document, one.offset) < std::tie(other.document, other.offset);
  }
};

struct Term {
  std::string word;
};

struct Both;
struct Either;
using Query = std::variant<Term, std::unique_ptr<Both>, std::unique_ptr<Either>>;

struct Both {
  Query left, right;
};

struct Either {
  Query left, right;
};

template <typename... Handlers>
struct overloaded : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
overloaded(Handlers...) -> overloaded<Handlers...>;

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<std::string> split(std::string_view text) const = 0;
};

class PlainTokenizer final : public Tokenizer {
 public:
  explicit PlainTokenizer(std::size_t shortest = 2, bool lower = true)
      : shortest_(shortest), lower_(lower) {}

  std::vector<std::string> split(std::string_view text) const override {
    std::vector<std::string> found;
    std::string word;
    for (char letter : text) {
      if (std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_') {
        word += lower_ ? static_cast<char>(std::tolower(letter)) : letter;
      } else if (word.size() >= shortest_) {
        found.push_back(std::exchange(word, {}));
      } else {
        word.clear();
      }
    }
    if (word.size() >= shortest_) found.emplace_back(std::move(word));
    return found;
  }

 private:
  std::size_t shortest_;
  bool lower_;
};

/**
 * The index. Documents can be added at any time; a query sees those added before it.
 */
template <typename Allocator = std::allocator<Hit>>
class Index {
 public:
  using Hits = std::vector<Hit, Allocator>;

  explicit Index(std::unique_ptr<Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}

  Position add(std::string_view text) {
    const auto document = next_++;
    Position offset = 0;
    for (auto& word : tokenizer_->split(text)) {
      auto [place, inserted] = hits_.try_emplace(std::move(word));
      if (inserted) {
        place->second.reserve(8);
      }
      place->second.push_back({document, offset++});
    }
    return document;
  }

  [[nodiscard]] std::optional<Hits> find(const Query& query) const {
    return std::visit(
        overloaded{
            [this](const Term& term) -> std::optional<Hits> {
              const auto found = hits_.find(term.word);
              if (found == hits_.end()) return std::nullopt;
              return found->second;
            },
            [this](const std::unique_ptr<Both>& both) { return intersect(find(both->left), find(both->right)); },
            [this](const std::unique_ptr<Either>& either) -> std::optional<Hits> {
              auto left = find(either->left);
              auto right = find(either->right);
              if (!left || !right) {
                return left ? left : right;
              }
              Hits all;
              std::merge(left->begin(), left->end(), right->begin(), right->end(), std::back_inserter(all));
              return all;
            },
        },
        query);
  }

 private:
  static std::optional<Hits> intersect(std::optional<Hits> left, std::optional<Hits> right) {
    if (!left || !right) {
      return std::nullopt;
    }
    Hits both;
    for (const auto& hit : *left) {
      const auto same = [&](const Hit& other) { return other.document == hit.document; };
      if (std::any_of(right->begin(), right->end(), same)) {
        both.push_back(hit);
      }
    }
    return both.empty() ? std::nullopt : std::optional<Hits>(std::move(both));
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unordered_map<std::string, Hits> hits_;
  Position next_ = 0;
};

}  // namespace words

INDEX_REGISTER(words::PlainTokenizer, 2, true)

int main() {
  words::Index<> index(std::make_unique<words::PlainTokenizer>(3));
  index.add("the quick brown fox");
  index.add(R"(a raw text, "quoted", with \ in it)");
  if (auto hits = index.find(words::Term{"quick"}); hits && !hits->empty()) {
    return static_cast<int>(hits->front().offset == 1 ? 0 : 1'000);
  }
  return 2;
}
