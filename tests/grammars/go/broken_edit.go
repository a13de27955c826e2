package 
//      ^ import
import (
	"fmt"
	"os
//  ^ import indent=1 open=(
func first(a int, 
//                ^ signature
func second() {
	if err := call(a, 
//                 ^ arguments indent=2 open={(
	x := []string{"one", "two
//                        ^ string indent=2 open={{
	y := map[string]int{
//                   ^ statement indent=2 open={{
	for i := range
//             ^ identifier indent=1 open={
	return
//     ^ identifier
	}}
	go func() {
//          ^ block_start
		ch <-
//     ^ operator
		a, b = b.
//         ^ identifier
	// a remark (
//            ^ comment
	/* never closed
	x := call(
//         ^ comment
