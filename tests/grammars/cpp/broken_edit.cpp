#include <vector
//              ^ import
using std::vector;
using std::
//         ^ import
class Pair : public Base<T> {
//                           ^ block_start
    Pair(int left, 
//                 ^ signature indent=8 open={(
    Pair() : left_(1), right_(
//                            ^ arguments
    }
};;
}}
//2 ^ closing
int main() {
    auto total = std::max(1, 
//                           ^ arguments indent=8 open={(
    auto name = call([&](int one) {
//                                 ^ block_start
        return one +
//                  ^ operator
    for (auto x : items {
        x.
//        ^ identifier
    std::cout <<
//              ^ operator
    if (x) return
//               ^ identifier
    auto text = R"(raw (text
//                     ^ string
