// Checks what clients did (docs/formats/history.md) by Porcupine: `make linearizable HISTORY=DIR`.
//
//	registers   each key of the table: write and read
//	lists       each partition: append, and reads of a part of it or up to its end
//	cursors     where a named reader stands in a partition
//	metastore   each key of the metastore: write, swap and read
//	as-of       reads as of a time and snapshots, without Porcupine (asof.go says why)
//
// It knows nothing of how the rest of the project judges a history, and shares no code with it.
//
// Exit code 0: all is well. 1: a violation. 2: not one violation, but a search that took too long, or
// a model of which there was nothing to check. 3: this is no history.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// A client whose call has an unknown end goes on as another process: its number and this.
const processes = 1000

// A picture of more operations than this is of no use, and needs much memory.
const picturedMost = 5000

// An object is one key, partition or cursor: each is searched alone.
type object struct {
	kind, name string
	model      porcupine.Model
	operations []porcupine.Operation
	without    int
}

type objects struct {
	kind    string
	model   porcupine.Model
	byName  map[string]*object
	later   []laterDelete
	without int // operations of unknown outcome that no read shows
}

func newObjects(kind string, model porcupine.Model) *objects {
	return &objects{kind: kind, model: model, byName: map[string]*object{}}
}

func (o *objects) add(name string, c *call, input, output any) {
	one := o.byName[name]
	if one == nil {
		one = &object{kind: o.kind, name: name, model: o.model}
		o.byName[name] = one
	}
	one.operations = append(one.operations, porcupine.Operation{
		ClientId: c.process % processes, Input: input, Output: output, Call: c.began, Return: c.ended,
	})
}

func (o *objects) all() []*object {
	var found []*object
	for _, one := range o.byName {
		found = append(found, one)
	}
	sort.Slice(found, func(i, j int) bool { return found[i].name < found[j].name })
	return found
}

// A standing is what was found of one model.
type standing struct {
	Model      string   `json:"model"`
	Objects    int      `json:"objects"`
	Operations int      `json:"operations"`
	Unseen     int      `json:"unseen"`
	Violations int      `json:"violations"`
	Unknown    int      `json:"unknown"`
	Seconds    float64  `json:"seconds"`
	Said       []string `json:"said"`
}

type checker struct {
	folder  string
	timeout time.Duration
}

func (c *checker) check(kind string, some []*object) standing {
	found := standing{Model: kind, Objects: len(some), Said: []string{}}
	began := time.Now()
	for _, one := range some {
		found.Operations += len(one.operations)
		found.Unseen += one.without
		model := one.model
		switch porcupine.CheckOperationsTimeout(model, one.operations, c.timeout) {
		case porcupine.Illegal:
			found.Violations++
			found.Said = append(found.Said, fmt.Sprintf("%s %s: %s", kind, one.name, c.explained(one)))
		case porcupine.Unknown:
			found.Unknown++
			found.Said = append(found.Said, fmt.Sprintf(
				"%s %s: unknown, %d operations were not decided within %s",
				kind, one.name, len(one.operations), c.timeout))
		}
	}
	found.Seconds = time.Since(began).Seconds()
	return found
}

// explained draws a picture, and says what fits nowhere.
func (c *checker) explained(one *object) string {
	if len(one.operations) > picturedMost {
		return fmt.Sprintf("no order of its %d operations fits (too many for a picture)", len(one.operations))
	}
	result, info := porcupine.CheckOperationsVerbose(one.model, one.operations, c.timeout)
	if result != porcupine.Illegal {
		return "no order of its operations fits"
	}
	said := fmt.Sprintf("no order of its %d operations fits", len(one.operations))
	longest := []int{}
	for _, orders := range info.PartialLinearizations() {
		for _, order := range orders {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	placed := map[int]bool{}
	for _, id := range longest {
		placed[id] = true
	}
	first := -1
	for id, op := range one.operations {
		if !placed[id] && (first < 0 || op.Return < one.operations[first].Return) {
			first = id
		}
	}
	if first >= 0 {
		op := one.operations[first]
		said += fmt.Sprintf("; %d can be placed, then not: %s, by process %d at %.3f s",
			len(longest), one.model.DescribeOperation(op.Input, op.Output), op.ClientId,
			float64(op.Call)/1e9)
	}
	picture := filepath.Join(c.folder, fmt.Sprintf("linearizable-%s-%s.html", one.kind, safe(one.name)))
	if err := porcupine.VisualizePath(one.model, info, picture); err != nil {
		return said + "; no picture: " + err.Error()
	}
	return said + "; see " + picture
}

func safe(name string) string {
	made := []rune(name)
	for i, r := range made {
		if r == '/' || r == 0 {
			made[i] = '_'
		}
	}
	return string(made)
}

func direct(kind string, objects, operations int, wrong []string) standing {
	const shown = 20
	return standing{
		Model: kind, Objects: objects, Operations: operations, Violations: len(wrong),
		Said: append([]string{}, wrong[:min(shown, len(wrong))]...),
	}
}

func (c *checker) run() (found []standing, err error) {
	defer func() {
		if why := recover(); why != nil {
			bad, ok := why.(malformed)
			if !ok {
				panic(why)
			}
			err = errors.New("this is no history: " + bad.what)
		}
	}()
	head, calls, err := readHistory(filepath.Join(c.folder, "rows.jsonl"))
	if err != nil {
		return nil, err
	}
	_, metaCalls, err := readHistory(filepath.Join(c.folder, "metastore.jsonl"))
	if err != nil {
		return nil, err
	}
	found = append(found, c.check("registers", rowRegisters(calls)))
	l := partitionLists(head, calls)
	lists := c.check("lists", l.finish())
	lists.Unseen = l.found.without
	lists.Violations += len(l.wrong)
	lists.Said = append(lists.Said, l.wrong[:min(20, len(l.wrong))]...)
	if l.appends == 0 {
		lists.Operations = 0 // reads of nothing but empty lists prove nothing
	}
	found = append(found, lists)
	found = append(found, c.check("cursors", cursors(calls)))
	found = append(found, c.check("metastore", metastoreRegisters(metaCalls)))
	count, wrong := reads(calls, l)
	return append(found, direct("as-of", head.Partitions, count, wrong)), nil
}

func main() {
	timeout := flag.Duration("timeout", 2*time.Minute, "how long the search of one object may take")
	asJSON := flag.Bool("json", false, "one JSON object")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: linearizable [-timeout 2m] [-json] DIR")
		os.Exit(3)
	}
	c := &checker{folder: flag.Arg(0), timeout: *timeout}
	found, err := c.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "linearizable:", err)
		os.Exit(3)
	}
	violations, undecided := 0, 0
	for i := range found {
		one := &found[i]
		violations += one.Violations
		undecided += one.Unknown
		if one.Operations == 0 {
			undecided++
			one.Said = append(one.Said, fmt.Sprintf("%s: nothing was checked, the history has no such operation", one.Model))
		}
	}
	if *asJSON {
		encoder := json.NewEncoder(os.Stdout)
		_ = encoder.Encode(map[string]any{"history": c.folder, "models": found})
	} else {
		show(found)
	}
	switch {
	case violations > 0:
		os.Exit(1)
	case undecided > 0:
		os.Exit(2)
	}
}

func show(found []standing) {
	for _, one := range found {
		fmt.Printf("%-10s %4d objects %7d operations %4d unseen %3d violations %3d unknown %6.1f s\n",
			one.Model, one.Objects, one.Operations, one.Unseen, one.Violations, one.Unknown, one.Seconds)
	}
	for _, one := range found {
		for _, said := range one.Said {
			fmt.Println("  " + said)
		}
	}
}
