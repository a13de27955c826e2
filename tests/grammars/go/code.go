package main
//      ^ import

import (
	"fmt"
//  ^ import
	"os"
//1 ^ import indent=1 open=(
)

// Adds two numbers.
//          ^ comment
func Add(first int, second int) (int, error) {
//                     ^ signature
//                                    ^ signature indent=1 open=(
//                                            ^ block_start
	total := first + second
//0 ^ indent
//                ^ operator indent=1 open={
	if total > 10 && first != 0 {
//          ^ operator
//                            ^ block_start
		return max(total, other), nil
//           ^ arguments indent=3 open={{(
//                        ^ closing
	}
//^ closing
	/* block comment */
//        ^ comment indent=1 open={
	fmt.Println("sum %d", total)
//   ^ identifier
//                ^ string
//                     ^ arguments indent=2 open={(
	return total, nil
//             ^ statement
}

type Shape struct {
//                 ^ block_start
	Name  string
	Sides int `json:"sides"`
// ^ identifier indent=1 open={
//                  ^ string
}

type Area interface {
//                   ^ block_start
	Area(scale float64) float64
//          ^ signature indent=2 open={(
}

func (s *Shape) Area(scale float64) float64 {
//              ^ signature
//                                  ^ signature
//                                           ^ block_start indent=1 open={
	for _, side := range s.Sides {
//                    ^ operator
//                             ^ block_start
		side.Draw(
			s.X,
//0 ^ indent indent=3 open={{(
			s.Y,
//   ^ identifier
		)
//0 ^ indent
// ^ closing indent=2 open={{
	}
	switch s.Name {
//        ^ identifier
//              ^ block_start
	case "ab":
//      ^ string indent=1 open={{
//         ^ block_start
		return 1
	}
	table := map[string]int{"key": 1}
//                              ^ operator
	twice := func(left int, right int) int {
//                       ^ signature indent=2 open={(
//                                       ^ block_start
		return left * right
//              ^ operator
	}
	go run(func() {
//              ^ block_start indent=2 open={({
		defer s.Close()
//              ^ arguments
	})
// ^ closing
	one := table["key"]
//            ^ statement indent=2 open={[
//               ^ string
//                  ^ closing
	var text = `raw
 text`
// ^ string indent=1 open={
	return twice(one, 2)
//     ^ identifier
//                 ^ arguments
}
