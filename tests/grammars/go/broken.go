package main

import "
//      ^ import
func Open(first int, 
//                   ^ signature

func Next(b int) {
//                ^ block_start indent=1 open={
	x := foo(a, 
//           ^ arguments
	y := bar(1, 2)
//             ^ closing
	s := "unclosed string
//              ^ string indent=1 open={
	t := s.
//      ^ identifier
	if x ==
//      ^ operator
	return t + 
//          ^ operator indent=1 open={
}

type Other struct {
//                 ^ block_start
	Name string
}

func (o *Other) Method(first int, 
//                                ^ signature
}

func (o *Other) Last() {
//                      ^ block_start indent=1 open={
	list := []int{1, 2, call(
//                        ^ arguments
	// comment in broken code
//             ^ comment
	value := 
//        ^ operator indent=1 open={
	for value > 1 {
//              ^ block_start
		o.
//  ^ identifier
		text := `unclosed 
//                  ^ string indent=2 open={{
