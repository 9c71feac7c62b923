// Lists: each partition is a list to which rows are appended, and of which parts are read.
//
// An append that was acknowledged says at which offset its rows stand: it fits only where the list
// has that length. For a call of unknown outcome, and for a producer's, the reads say where its rows
// stand; rows that no read shows, with the last reads of the whole list among them, never took effect.

package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sort"

	"github.com/anishathalye/porcupine"
)

// A row is its id and seq; a delete has no seq.
type row struct {
	id, seq int64
	deleted bool
}

// lost stands for a row of a call that no read shows where it should be.
var lost = row{id: -1, seq: -1, deleted: true}

type place struct{ partition, offset int64 }

type listOp struct {
	appends bool
	low     int64 // the offset of the first row
	high    int64 // and behind the last
	exact   bool  // the read ended where the list ended
	rows    []row
	what    string
}

// A list is immutable: what was before the last append, and that.
type list struct {
	length int64
	sum    [16]byte
	before *list
	rows   []row
}

func (l *list) with(rows []row) *list {
	hash := sha256.New()
	hash.Write(l.sum[:])
	for _, r := range rows {
		var bytes [17]byte
		binary.BigEndian.PutUint64(bytes[:], uint64(r.id))
		binary.BigEndian.PutUint64(bytes[8:], uint64(r.seq))
		if r.deleted {
			bytes[16] = 1
		}
		hash.Write(bytes[:])
	}
	made := &list{length: l.length + int64(len(rows)), before: l, rows: rows}
	copy(made.sum[:], hash.Sum(nil))
	return made
}

// has says whether these rows stand from an offset on.
func (l *list) has(low int64, rows []row) bool {
	high := low + int64(len(rows))
	for one := l; one != nil && one.length > low; one = one.before {
		first := one.length - int64(len(one.rows))
		for i := len(one.rows) - 1; i >= 0; i-- {
			offset := first + int64(i)
			if offset < high && offset >= low && one.rows[i] != rows[offset-low] {
				return false
			}
		}
	}
	return true
}

var appendList = porcupine.Model{
	Init: func() any { return &list{} },
	Step: func(state, input, _ any) (bool, any) {
		now, op := state.(*list), input.(listOp)
		if op.appends {
			if now.length != op.low {
				return false, now
			}
			return true, now.with(op.rows)
		}
		if now.length < op.high || (op.exact && now.length != op.high) {
			return false, now
		}
		return now.has(op.low, op.rows), now
	},
	Equal: func(a, b any) bool {
		one, two := a.(*list), b.(*list)
		return one.length == two.length && one.sum == two.sum
	},
	Hash: func(state any) uint64 { return binary.BigEndian.Uint64(state.(*list).sum[:]) },
	DescribeOperation: func(input, _ any) string {
		op := input.(listOp)
		to := ""
		if op.exact {
			to = ", its end"
		}
		return fmt.Sprintf("%s %d to %d%s %s", op.what, op.low, op.high, to, few(op.rows))
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%d rows", state.(*list).length) },
}

func few(rows []row) string {
	if len(rows) > 4 {
		return fmt.Sprintf("%v to %v", rows[0], rows[len(rows)-1])
	}
	return fmt.Sprintf("%v", rows)
}

func (r row) String() string {
	switch {
	case r == lost:
		return "lost"
	case r.deleted:
		return fmt.Sprintf("%d deleted", r.id)
	case r.id < 0:
		return fmt.Sprintf("%d=%d", r.id, r.seq)
	default:
		return fmt.Sprintf("%d", r.id)
	}
}

// A stretch of rows without a hole, as a read gives it.
type stretch struct {
	partition, offset int64
	rows              []row
}

func (s *stretch) UnmarshalJSON(raw []byte) error {
	var ids []int64
	var seqs []*int64
	parts := [4]any{&s.partition, &s.offset, &ids, &seqs}
	inner := parts[:]
	if err := unmarshalTuple(raw, inner); err != nil {
		return err
	}
	if len(ids) != len(seqs) {
		return fmt.Errorf("%d ids and %d seqs", len(ids), len(seqs))
	}
	for i, id := range ids {
		r := row{id: id, deleted: seqs[i] == nil}
		if seqs[i] != nil {
			r.seq = *seqs[i]
		}
		s.rows = append(s.rows, r)
	}
	return nil
}

type appendAsked struct {
	First int64 `json:"first"`
	Count int64 `json:"count"`
}

type lists struct {
	found   *objects
	seen    map[row][]place   // where reads have shown a row, the last reads first
	at      map[place][]row   // the other way around
	ends    map[place]bool    // where reads have ended
	used    map[row]bool      // rows that an operation places
	count   int64             // of partitions
	wrong   []string          // what no list can say
	final   map[int64][]row   // each partition as the first of the last reads has it
	times   map[int64][]int64 // and the times of its rows
	finals  int
	appends int
}

func partitionLists(head header, calls []*call) *lists {
	l := &lists{
		found: newObjects("lists", appendList),
		seen:  map[row][]place{}, at: map[place][]row{}, ends: map[place]bool{},
		used: map[row]bool{}, count: int64(head.Partitions),
		final: map[int64][]row{}, times: map[int64][]int64{},
	}
	for i := len(calls) - 1; i >= 0; i-- { // the last reads are whole: what they say comes first
		l.reads(calls[i])
	}
	for _, c := range calls {
		switch c.f {
		case "append", "send", "write":
			if !c.failed() {
				l.appended(c)
			}
		}
	}
	if l.finals == 0 {
		l.wrong = append(l.wrong, "no last read of all rows (`final`): rows of unknown outcome can't be placed")
	}
	return l
}

// reads takes a call that has read rows.
func (l *lists) reads(c *call) {
	if !c.ok() {
		return
	}
	switch c.f {
	case "scan", "final":
		var value struct {
			Start [][2]int64 `json:"start"`
			End   [][2]int64 `json:"end"`
			Rows  []stretch  `json:"rows"`
			Times []timesOf  `json:"times"`
		}
		parse(c.value, &value)
		starts := map[int64]int64{}
		for _, one := range value.Start {
			starts[one[0]] = one[1]
		}
		for _, one := range value.End {
			partition, low, high := one[0], starts[one[0]], one[1]
			rows := make([]row, 0, max(high-low, 0))
			for offset := low; offset < high; offset++ {
				rows = append(rows, lost)
			}
			for _, s := range value.Rows {
				if s.partition != partition {
					continue
				}
				l.shown(s)
				for i, r := range s.rows {
					if at := s.offset + int64(i) - low; at >= 0 && at < int64(len(rows)) {
						rows[at] = r
					} else {
						l.wrong = append(l.wrong, fmt.Sprintf(
							"a %s of partition %d from %d to %d gave offset %d",
							c.f, partition, low, high, s.offset+int64(i)))
					}
				}
			}
			if c.f == "final" {
				if l.final[partition] == nil {
					l.final[partition] = rows
				}
			}
			l.look(c, listOp{what: c.f, low: low, high: high, exact: true, rows: rows}, partition)
		}
		for _, one := range value.Times {
			if l.times[one.partition] == nil {
				l.times[one.partition] = one.times
			} else if !equal(l.times[one.partition], one.times) {
				l.wrong = append(l.wrong, fmt.Sprintf(
					"the nodes give rows of partition %d different times", one.partition))
			}
		}
		if c.f == "final" {
			l.finals++
		}
	case "tail":
		var value []stretch
		parse(c.value, &value)
		l.pieces(c, value)
	case "poll":
		var value struct {
			Rows []stretch `json:"rows"`
		}
		parse(c.value, &value)
		l.pieces(c, value.Rows)
	case "snapshot":
		var value struct {
			Ends [][2]int64 `json:"ends"`
		}
		parse(c.value, &value)
		for _, one := range value.Ends {
			l.look(c, listOp{what: c.f, low: one[1], high: one[1], exact: true}, one[0])
		}
	}
}

func (l *lists) pieces(c *call, pieces []stretch) {
	for _, s := range pieces {
		l.shown(s)
		high := s.offset + int64(len(s.rows))
		l.look(c, listOp{what: c.f, low: s.offset, high: high, rows: s.rows}, s.partition)
	}
}

func (l *lists) shown(s stretch) {
	for i, r := range s.rows {
		where := place{s.partition, s.offset + int64(i)}
		if !contains(l.at[where], r) {
			l.at[where] = append(l.at[where], r)
			l.seen[r] = append(l.seen[r], where)
		}
	}
}

func (l *lists) look(c *call, op listOp, partition int64) {
	l.ends[place{partition, op.high}] = true
	l.found.add(fmt.Sprint(partition), c, op, nil)
}

// appended takes a call that has written rows.
func (l *lists) appended(c *call) {
	l.appends++
	var rows []row
	parts := c.parts
	if c.f == "write" {
		var pair [2]*int64
		parse(c.asked, &pair)
		r := row{id: *pair[0], deleted: pair[1] == nil}
		if pair[1] != nil {
			r.seq = *pair[1]
		}
		rows = []row{r}
	} else {
		var asked appendAsked
		parse(c.asked, &asked)
		for i := int64(0); i < asked.Count; i++ {
			rows = append(rows, row{id: asked.First + i})
		}
		if c.ok() && c.f == "append" {
			var value struct {
				Parts [][3]int64 `json:"parts"`
			}
			parse(c.value, &value)
			parts = value.Parts
		}
	}
	if c.ok() && c.f != "send" {
		l.placed(c, rows, parts)
		return
	}
	l.unplaced(c, rows)
}

// placed: the answer says where the rows stand.
func (l *lists) placed(c *call, rows []row, parts [][3]int64) {
	mine := map[row]bool{}
	for _, r := range rows {
		mine[r] = true
	}
	told := int64(0)
	for _, part := range parts {
		partition, low, count := part[0], part[1], part[2]
		told += count
		op := listOp{what: c.f, appends: true, low: low, high: low + count}
		for offset := low; offset < low+count; offset++ {
			here := lost
			for _, r := range l.at[place{partition, offset}] {
				// Deletes of a key are all alike; any other row is written once.
				if mine[r] && (r.deleted || !l.used[r]) {
					here = r
				}
			}
			if c.f == "write" {
				here = rows[0]
			}
			l.used[here] = true
			op.rows = append(op.rows, here)
		}
		l.found.add(fmt.Sprint(partition), c, op, nil)
	}
	if told != int64(len(rows)) {
		l.wrong = append(l.wrong, fmt.Sprintf(
			"an %s of %d rows from %v on says where %d are", c.f, len(rows), rows[0], told))
	}
}

// unplaced: reads say where the rows stand, if they took effect.
func (l *lists) unplaced(c *call, rows []row) {
	type here struct {
		offset int64
		r      row
	}
	byPartition := map[int64][]here{}
	for _, r := range rows {
		if r.deleted {
			// Deletes of one key are all alike: this one may be any that no other call has placed.
			// They are matched when all others are known.
			l.found.later = append(l.found.later, laterDelete{c, r})
			continue
		}
		places := l.seen[r]
		if len(places) == 0 {
			if c.ok() {
				l.wrong = append(l.wrong, fmt.Sprintf(
					"row %v of an acknowledged %s at %.3f s is in no read", r, c.f, float64(c.began)/1e9))
			} else {
				l.found.without++
			}
			continue
		}
		l.used[r] = true
		byPartition[places[0].partition] = append(byPartition[places[0].partition], here{places[0].offset, r})
	}
	for partition, some := range byPartition {
		sort.Slice(some, func(i, j int) bool { return some[i].offset < some[j].offset })
		var op *listOp
		flush := func() {
			if op != nil {
				l.found.add(fmt.Sprint(partition), c, *op, nil)
			}
		}
		for _, one := range some {
			// Its rows may have come in several batches: where a read has ended, one may end.
			if op == nil || op.high != one.offset || l.ends[place{partition, one.offset}] {
				flush()
				op = &listOp{what: c.f, appends: true, low: one.offset, high: one.offset}
			}
			op.high++
			op.rows = append(op.rows, one.r)
		}
		flush()
	}
}

type laterDelete struct {
	c *call
	r row
}

// finish places deletes of unknown outcome: at offsets of the last reads that show a delete of the
// key and that no other call has placed, the earliest call first.
func (l *lists) finish() []*object {
	taken := map[place]bool{}
	for _, one := range l.found.all() {
		var partition int64
		fmt.Sscan(one.name, &partition)
		for _, op := range one.operations {
			if input := op.Input.(listOp); input.appends {
				for offset := input.low; offset < input.high; offset++ {
					taken[place{partition, offset}] = true
				}
			}
		}
	}
	later := l.found.later
	for _, one := range later {
		var free []place
		for _, where := range l.seen[one.r] {
			if !taken[where] {
				free = append(free, where)
			}
		}
		sort.Slice(free, func(i, j int) bool { return free[i].offset < free[j].offset })
		if len(free) == 0 {
			l.found.without++
			continue
		}
		taken[free[0]] = true
		l.found.add(fmt.Sprint(free[0].partition), one.c, listOp{
			what: one.c.f, appends: true, low: free[0].offset, high: free[0].offset + 1, rows: []row{one.r},
		}, nil)
	}
	return l.found.all()
}

type timesOf struct {
	partition int64
	times     []int64
}

func (t *timesOf) UnmarshalJSON(raw []byte) error {
	return unmarshalTuple(raw, []any{&t.partition, &t.times})
}

func contains[T comparable](some []T, one T) bool {
	for _, other := range some {
		if other == one {
			return true
		}
	}
	return false
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
