// Cursors: where a named reader stands in a partition. It moves forward only, and never past rows
// that its reader was not given.

package main

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

type cursorKind int

const (
	look   cursorKind = iota // where it stands
	given                    // rows from where it stands
	commit                   // move it
)

type cursorOp struct {
	kind      cursorKind
	low, high int64
	unknown   bool
}

type cursorState struct {
	stands int64
	given  int64 // its reader has all rows below
}

var cursor = porcupine.Model{
	Init: func() any { return cursorState{} },
	Step: func(state, input, _ any) (bool, any) {
		now, op := state.(cursorState), input.(cursorOp)
		switch op.kind {
		case look:
			return now.stands == op.low, now
		case given:
			now.given = max(now.given, op.high)
			return now.stands == op.low, now
		default:
			if op.low > now.given {
				return false, now
			}
			if op.low < now.stands {
				return op.unknown, now // it is refused
			}
			now.stands = op.low
			return true, now
		}
	},
	DescribeOperation: func(input, _ any) string {
		op := input.(cursorOp)
		switch {
		case op.kind == look:
			return fmt.Sprintf("stands at %d", op.low)
		case op.kind == given:
			return fmt.Sprintf("reads %d to %d", op.low, op.high)
		case op.unknown:
			return fmt.Sprintf("commit %d, unknown", op.low)
		default:
			return fmt.Sprintf("commit %d", op.low)
		}
	},
	DescribeState: func(state any) string {
		now := state.(cursorState)
		return fmt.Sprintf("stands at %d, has read to %d", now.stands, now.given)
	},
}

func cursors(calls []*call) []*object {
	found := newObjects("cursors", cursor)
	for _, c := range calls {
		if c.failed() {
			continue
		}
		name := func(partition int64) string {
			return fmt.Sprintf("%d-%d", c.process%processes, partition)
		}
		switch c.f {
		case "commit":
			var asked, stands [][2]int64
			parse(c.asked, &asked)
			for _, one := range asked {
				op := cursorOp{kind: commit, low: one[1], unknown: !c.ok()}
				found.add(name(one[0]), c, op, nil)
			}
			if c.ok() {
				parse(c.value, &stands)
				for _, one := range stands { // it is looked at behind the move
					found.add(name(one[0]), c, cursorOp{kind: look, low: one[1]}, nil)
				}
			}
		case "poll":
			if !c.ok() {
				continue
			}
			var value struct {
				Stands [][2]int64 `json:"stands"`
				End    [][2]int64 `json:"end"`
				Rows   []stretch  `json:"rows"`
			}
			parse(c.value, &value)
			for _, one := range value.Stands {
				found.add(name(one[0]), c, cursorOp{kind: look, low: one[1]}, nil)
			}
			low, high := map[int64]int64{}, map[int64]int64{}
			for _, s := range value.Rows {
				end := s.offset + int64(len(s.rows))
				if at, there := high[s.partition]; !there {
					low[s.partition], high[s.partition] = s.offset, end
				} else if at == s.offset {
					high[s.partition] = end
				} // else there is a hole: what is behind it was not given in order
			}
			for _, one := range value.End {
				partition := one[0]
				if _, there := low[partition]; there {
					op := cursorOp{kind: given, low: low[partition], high: high[partition]}
					found.add(name(partition), c, op, nil)
				}
			}
		}
	}
	return found.all()
}
