#include <vector>
//           ^ import
using namespace std;
//              ^ import

namespace shapes {
//                ^ block_start indent=0 open={

/// Adds two numbers.
//           ^ docstring
template <typename T, typename U>
//                    ^ signature
T add(const T &first, U second) {
//                         ^ signature indent=4 open={(
//                               ^ block_start
    // a plain remark
//0 ^ indent
//             ^ comment indent=4 open={{
    auto total = first + second;
//                       ^ operator
    if (total > 10 && first) {
//              ^ operator
//                            ^ block_start indent=8 open={{{
        return std::max(total, other);
//                  ^ identifier
//                      ^ arguments
//                                   ^ closing indent=8 open={{{
    }
//   ^ closing
    /* block comment */
//           ^ comment
    std::cout << "sum " << total;
//               ^ operator indent=4 open={{
//                    ^ string
    return total;
}

class Shape : public Base {
//                   ^ signature
//                         ^ block_start indent=4 open={{
public:
    explicit Shape(int sides, int scale = 1) : sides_(sides), scale_(scale) {
//                            ^ signature
//                                                    ^ arguments
//                                                            ^ signature whole
//                                                                           ^ block_start
        this->draw(sides);
//            ^ identifier
//                 ^ arguments indent=12 open={{{(
    }
    virtual double area(double scale) const;
//                             ^ signature
    int sides_;
//        ^ identifier
};

double Shape::area(double scale) const {
//            ^ signature whole
//                                      ^ block_start
    for (auto &side : sides_) {
//                    ^ statement
//                             ^ block_start indent=8 open={{{
        side.draw(
            side.x,
//0 ^ indent
            side.y
//               ^ identifier
        );
//0 ^ indent indent=12 open={{{(
//       ^ closing
    }
    std::vector<int> table = {1, 2};
//                               ^ statement
    auto twice = [&](int left, int right) {
//                             ^ signature indent=8 open={{(
//                                         ^ block_start
        return left * right;
//                    ^ operator
    };
    int one = table[0];
//                  ^ statement indent=8 open={{[
//                    ^ closing
    int big = 1'000'000;
//                   ^ identifier
    const char *raw = R"(raw "quoted" text)";
//                                    ^ string indent=4 open={{
    switch (one) {
//                ^ block_start
    case 1:
//         ^ block_start
        throw Problem("bad");
//                       ^ string indent=12 open={{{(
    }
    return one ? 1 : 2;
//        ^ identifier
//               ^ operator
//                   ^ operator indent=4 open={{
}

}  // namespace shapes
//              ^ comment
